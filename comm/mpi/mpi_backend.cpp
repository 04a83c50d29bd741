#include "comm/mpi/mpi_backend.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/detail/silence.hpp"
#include "comm/mpi/plugin.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/mutex.hpp"
#include "runtime/base/shared_library.hpp"
#include "runtime/base/thread.hpp"

namespace spillway::comm::detail {
namespace {

namespace fs = std::filesystem;

/// Returns where the plugin may lie: beside the program or library that this code is in, in `lib`
/// beside its folder, and in the dynamic linker's own places.
std::vector<fs::path> plugin_directories() {
  Dl_info here{};
  if (::dladdr(reinterpret_cast<const void*>(&make_mpi_transport), &here) == 0 ||
      here.dli_fname == nullptr) {
    return {fs::path()};
  }
  std::error_code ignored;
  fs::path file = fs::weakly_canonical(here.dli_fname, ignored);
  if (!fs::exists(file, ignored)) file = fs::read_symlink("/proc/self/exe", ignored);
  const fs::path folder = file.parent_path();
  return {folder, folder.parent_path() / "lib", fs::path()};
}

/// Looks after a start of MPI while it lasts.
class StartWatch {
 public:
  explicit StartWatch(std::chrono::milliseconds limit)
      : thread_(start_thread("mpi-start", [this, limit] { watch(limit); })) {}
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;
  ~StartWatch() {
    {
      const Lock lock(mutex_);
      over_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

 private:
  void watch(std::chrono::milliseconds limit) {
    const auto begin = std::chrono::steady_clock::now();
    Lock lock(mutex_);
    for (std::chrono::milliseconds next = kSilence;; next *= 2) {
      bool late = false;
      while (!over_ && !late) late = changed_.wait_until(lock, begin + std::min(next, limit));
      if (over_) return;
      if (next >= limit) break;
      log_warning("MPI has not started for {} s: it waits for every process of the launcher",
                  next / std::chrono::seconds(1));
    }
    log_error(
        "MPI has not started within {} s: a process of the launcher has not come to it; see that "
        "each runs this program with the same MPI, or allow more by spillway.timeout",
        static_cast<double>(limit.count()) / 1e3);
    std::_Exit(EXIT_FAILURE);
  }

  Mutex mutex_;
  Condition changed_;
  bool over_ SPILLWAY_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Transport> make_mpi_transport(std::chrono::milliseconds limit) {
  const std::vector<fs::path> directories = plugin_directories();
  const SharedLibrary plugin(kMpiPlugin, directories,
                             "build it beside the program, on a machine that has the MPI of this "
                             "launcher: apt-get install libopenmpi-dev (or libmpich-dev), then "
                             "cmake -DSPILLWAY_MPI=ON build/release && cmake --build build/release "
                             "--target spillway_mpi");
  const std::string_view version = plugin.function<MpiVersion>(kMpiVersionFunction)();
  if (version != SPILLWAY_VERSION) {
    throw Error(ErrorCode::not_supported,
                fmt::format("{} is of Spillway {} and this program of {}; install both together",
                            plugin.path(), version, SPILLWAY_VERSION));
  }
  const StartWatch watch(limit);
  return std::unique_ptr<Transport>(plugin.function<MpiMake>(kMpiMakeFunction)());
}

}  // namespace spillway::comm::detail
