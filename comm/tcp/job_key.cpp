#include "comm/tcp/job_key.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "comm/tcp/listening.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"

namespace spillway::comm::detail {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kShortest = 16;  // bytes of a secret that somebody has thought of
/// A network file system may show a new file late.
constexpr auto kFileDelay = 3s;
/// After so long a wait for the file is told.
constexpr auto kFileSilence = 1s;

KeySource source_of(const LaunchEnvironment& launch) {
  if (!launch.secret.empty()) return KeySource::environment;
  if (launch.trusts_network) return KeySource::nobody;
  if (!launch.meeting_directory.empty()) return KeySource::file;
  check(is_on_one_machine(launch), ErrorCode::not_supported,
        fmt::format("the ranks are on several machines (rank 0 on {}) and have no secret by which "
                    "they know each other; set SPILLWAY_JOB_SECRET to the same text of at least {} "
                    "characters on all, or say --trust-network where nobody else reaches them",
                    launch.host, kShortest));
  return KeySource::nobody;
}

/// Returns the text of the file, or nothing while that is not there in full.
std::optional<std::string> read_secret(const std::filesystem::path& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.is_open()) {
    if (errno == ENOENT || errno == ESTALE) return std::nullopt;
    throw_errno(errno, fmt::format("open {}", path.string()));
  }
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) throw_errno(errno, fmt::format("stat {}", path.string()));
  check(S_ISREG(about.st_mode) && about.st_uid == ::geteuid() && (about.st_mode & 077) == 0,
        ErrorCode::invalid_argument,
        fmt::format("{} is not a file that this user alone can read, as rank 0 would have made it; "
                    "remove it, or set SPILLWAY_JOB_SECRET to the same text on all ranks",
                    path.string()));
  std::string text(random_secret().size(), '\0');
  const ssize_t bytes = ::pread(file.get(), text.data(), text.size(), 0);
  if (bytes < 0) throw_errno(errno, fmt::format("read {}", path.string()));
  if (static_cast<std::size_t>(bytes) < text.size()) return std::nullopt;
  return text;
}

}  // namespace

JobKey::JobKey(const LaunchEnvironment& launch, KeySource source)
    : rank_(launch.rank.value()),
      source_(source),
      path_(source == KeySource::file ? launch.meeting_directory / kJobSecretFile
                                      : std::filesystem::path()) {}

JobKey::JobKey(const LaunchEnvironment& launch) : JobKey(launch, source_of(launch)) {
  check(source_ != KeySource::environment || launch.secret.size() >= kShortest,
        ErrorCode::invalid_argument,
        fmt::format("SPILLWAY_JOB_SECRET has {} characters, and needs {}: take those of "
                    "`openssl rand -hex 32`",
                    launch.secret.size(), kShortest));
  if (source_ != KeySource::file) {
    key_ = key_of(launch.secret);
    return;
  }
  if (rank_ == 0) make_file();  // whose file goes with this even where it throws
}

JobKey::~JobKey() {
  if (file_.get() < 0) return;
  try {
    if (leads_to(path_, file_.get())) std::filesystem::remove(path_);
  } catch (const std::exception& error) {
    log_warning("the secret of the ranks stays in {}: {}", path_.string(), error.what());
  }
}

std::string JobKey::in_use() const {
  return fmt::format(
      "{} is of another start, whose ranks are meeting; wait until that has ended, "
      "or choose another run directory",
      path_.string());
}

/// A start that was killed has left its file, without a lock.
void JobKey::remove_left_over() {
  LockedFile file(
      FileDescriptor(::open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)));
  if (file.get() < 0) return;
  // Another start may have removed this file, and made its own, since it was opened here.
  check(file.try_lock(path_) && leads_to(path_, file.get()), ErrorCode::busy, in_use());
  std::filesystem::remove(path_);
}

/// Nothing if a start that has failed has meanwhile taken the directory back that it had made.
std::optional<FileDescriptor> JobKey::open_new() const {
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  FileDescriptor file(::open(path_.c_str(), kFlags, S_IRUSR | S_IWUSR));
  if (file.is_open()) return file;
  if (errno == ENOENT) return std::nullopt;
  check(errno != EEXIST, ErrorCode::busy, in_use());
  throw_errno(errno, fmt::format("open {}", path_.string()));
}

void JobKey::make_file() {
  std::optional<FileDescriptor> file;
  while (!file.has_value()) {
    made_.make(path_.parent_path());
    remove_left_over();
    file = open_new();
  }
  LockedFile locked(std::move(*file));
  check(locked.try_lock(path_) && leads_to(path_, locked.get()), ErrorCode::busy, in_use());
  // Whoever has the lock removes the file, and nobody else: another start could have made its own
  // between the look at the path and the removal.
  file_ = std::move(locked);
  const std::string secret = random_secret();
  const ssize_t written = ::pwrite(file_.get(), secret.data(), secret.size(), 0);
  if (written != static_cast<ssize_t>(secret.size())) {
    throw_errno(written < 0 ? errno : ENOSPC, fmt::format("write {}", path_.string()));
  }
  key_ = key_of(secret);
}

const Key& JobKey::get() {
  const auto begin = std::chrono::steady_clock::now();
  bool told = false;
  while (!key_.has_value()) {
    if (const auto secret = read_secret(path_)) {
      key_ = key_of(*secret);
      break;
    }
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (waited > kFileSilence && !std::exchange(told, true)) {
      log_warning("rank {} still looks for {}, in which rank 0 has the secret of this job", rank_,
                  path_.string());
    }
    check(waited < kFileDelay, ErrorCode::invalid_argument,
          fmt::format("rank {} finds no {}, in which rank 0 has the secret of this job: give all "
                      "ranks the same run directory, and each job a port of its own by "
                      "SPILLWAY_MASTER_PORT; if their machines share no directory, set "
                      "SPILLWAY_JOB_SECRET to the same text on all, or say --trust-network where "
                      "nobody else reaches them",
                      rank_, path_.string()));
    std::this_thread::sleep_for(20ms);
  }
  return *key_;
}

}  // namespace spillway::comm::detail
