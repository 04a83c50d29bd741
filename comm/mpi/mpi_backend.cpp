#include "comm/mpi/mpi_backend.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <string_view>
#include <vector>

#include "comm/mpi/plugin.hpp"
#include "runtime/base/shared_library.hpp"

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

}  // namespace

std::unique_ptr<Transport> make_mpi_transport() {
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
  return std::unique_ptr<Transport>(plugin.function<MpiMake>(kMpiMakeFunction)());
}

}  // namespace spillway::comm::detail
