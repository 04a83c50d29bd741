#include "comm/tcp/listening.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cerrno>
#include <optional>
#include <string>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"

namespace spillway::comm::detail {
namespace {

/// Open files of a rank that are no connections with others.
constexpr std::uint64_t kOtherFiles = 64;
constexpr std::uint64_t kFilesOfPeer = 2;

}  // namespace

bool is_on_one_machine(const LaunchEnvironment& launch) {
  if (launch.local_ranks.has_value()) return *launch.local_ranks == launch.ranks;
  return is_loopback(launch.host);
}

// The name of a machine may stand for its loopback there, and for another address elsewhere. A name
// may also be that of a device before rank 0's machine.
FileDescriptor listen_as_first(const LaunchEnvironment& launch) {
  const bool elsewhere = is_loopback(launch.host) && !is_on_one_machine(launch);
  if (!elsewhere) {
    if (auto listener = listen_at(launch.host, launch.port)) return std::move(*listener);
  }
  log_warning("rank 0 takes connections at all addresses of its machine: {} is {}", launch.host,
              elsewhere ? "its loopback, and there are ranks on others" : "none of them");
  return listen_everywhere(launch.port);
}

FileDescriptor listen_beside(const LaunchEnvironment& launch, const FileDescriptor& first) {
  const std::string here = this_end(first);
  const bool alone = here.empty() && is_on_one_machine(launch);
  std::optional<FileDescriptor> listener;
  if (alone) listener = listen_at(launch.host, 0);
  if (!here.empty()) listener = listen_at(here, 0);
  return listener.has_value() ? std::move(*listener) : listen_everywhere(0);
}

void raise_open_files(std::uint32_t ranks) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) throw_errno(errno, "getrlimit");
  const std::uint64_t needed = kFilesOfPeer * ranks + kOtherFiles;
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) throw_errno(errno, "setrlimit");
  }
  check(needed <= limit.rlim_cur, ErrorCode::not_supported,
        fmt::format(
            "{} ranks need {} open files in each, and the limit of this process is {}, "
            "enough for {} ranks; raise the hard limit (ulimit -Hn), or use mpi",
            ranks, needed, limit.rlim_cur,
            limit.rlim_cur < kOtherFiles ? 0 : (limit.rlim_cur - kOtherFiles) / kFilesOfPeer));
}

}  // namespace spillway::comm::detail
