// The rendezvous of the backend `tcp`: processes that know where rank 0 is become a group in which
// each has two connections with every other.
//
// Rank 0 takes connections where the launcher has said. Every other rank opens a port of its own
// and tells rank 0; once all have, rank 0 tells each of them where the others are, and each
// connects to the ranks before it. On every connection both ends prove that they are of this job:
// a hello is answered by a challenge, that by the proof of who has called, and that by the proof of
// who was called. A rank that cannot go on tells rank 0, which tells the others.
#pragma once

#include <chrono>
#include <vector>

#include "comm/launch_environment.hpp"
#include "comm/tcp/inbox.hpp"
#include "runtime/base/error.hpp"

namespace spillway::comm::detail {

/// Connections with another rank. Bytes of transfers cannot delay a notice.
struct Peer {
  FileDescriptor data;
  Inbox notices;
};

/// Returns this rank's peers by rank; its own place is empty. Throws `Error` naming the ranks that
/// have not come within `limit`, or, on every rank that has come, why one cannot go on. A rank that
/// cannot be one of this job is told so, and does not end it.
[[nodiscard]] std::vector<Peer> meet(const LaunchEnvironment& launch,
                                     std::chrono::milliseconds limit);

/// Lets the ranks that meet where `launch` says know that a process that was to be one of them
/// cannot be, and why: rank 0 ends the meeting with that. Its rank is believed only if that is 0,
/// and then it answers whoever comes. Tries for kSilence, and ignores a failure of its own.
void report_failure(const LaunchEnvironment& launch, const Error& error) noexcept;

}  // namespace spillway::comm::detail
