#include "runtime/engine/run/lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>

#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"

namespace spillway::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kRetry{10};

/// The process id in the lock file, if one is written there.
std::optional<pid_t> holder_of(const LockedFile& file) {
  std::array<char, 32> text{};
  const ssize_t got = ::pread(file.get(), text.data(), text.size(), 0);
  pid_t holder = 0;
  if (got <= 0 || std::from_chars(text.data(), text.data() + got, holder).ec != std::errc{}) {
    return std::nullopt;
  }
  return holder;
}

/// Whether the process is still running, rather than exiting. One that was killed has no program
/// while the system takes back its memory; one of another host or container has none here.
bool is_alive(pid_t process) {
  std::array<char, 1> target{};
  const std::string link = fmt::format("/proc/{}/exe", process);
  return ::readlink(link.c_str(), target.data(), target.size()) >= 0 || errno == EACCES;
}

}  // namespace

RunLock::RunLock(fs::path root, std::chrono::milliseconds patience, std::uint64_t shared)
    : RunLock(std::move(root)) {  // whose destructor takes back what is made below
  if (shared > 0) made_.share(fs::absolute(root_).parent_path(), shared);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (open(); !try_lock(); open()) {
    const auto holder = holder_of(file_);
    const bool alive = holder && is_alive(*holder);
    if (alive || std::chrono::steady_clock::now() >= deadline) {
      made_file_ = false;  // it is the other's
      throw Error(ErrorCode::busy,
                  fmt::format("{} is in use by another process{}; wait for it to end, or choose "
                              "another --run",
                              root_.string(), holder ? fmt::format(" ({})", *holder) : ""),
                  EWOULDBLOCK);
    }
    std::this_thread::sleep_for(kRetry);
  }
  held_ = true;
  root_ = fs::canonical(root_);
  path_ = root_ / "lock";
  write_holder();
}

RunLock::~RunLock() {
  if (::getpid() != process_) {  // it was forked: all of this is the other's
    keep();
    return;
  }
  if (held_ && ::ftruncate(file_.get(), 0) != 0) {
    log_warning("truncate {}: {}", path_.string(), std::strerror(errno));
  }
  if (made_file_ && ::unlink(path_.c_str()) != 0 && errno != ENOENT) {
    log_warning("remove {}: {}", path_.string(), std::strerror(errno));
  }
}

/// The directory may vanish with another's failed start between any two of these steps.
void RunLock::open() {
  path_ = root_ / "lock";
  for (;;) {
    made_.make(root_);
    made_file_ = false;
    int descriptor =
        ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (descriptor >= 0) {
      made_file_ = true;
    } else if (errno == EEXIST) {
      descriptor = ::open(path_.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    }
    if (descriptor < 0 && errno == ENOENT) continue;
    if (descriptor < 0) throw_errno(errno, fmt::format("open {}", path_.string()));
    file_ = LockedFile(FileDescriptor(descriptor));
    return;
  }
}

bool RunLock::try_lock() { return file_.try_lock(path_) && still_there(); }

/// Writes which process has the lock, for those that are refused and for people.
void RunLock::write_holder() const {
  const std::string text = fmt::format("{}\n", ::getpid());
  if (::ftruncate(file_.get(), 0) != 0 ||
      ::pwrite(file_.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    throw_errno(errno, fmt::format("write {}", path_.string()));
  }
}

void RunLock::keep() {
  made_.keep();
  made_file_ = false;
}

bool RunLock::still_there() const { return leads_to(path_, file_.get()); }

}  // namespace spillway::engine
