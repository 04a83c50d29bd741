#include "comm/tcp/wire.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace spillway::comm::detail {
namespace {

template <std::size_t kSize>
std::string_view text_of(const char (&text)[kSize]) {
  return {text, ::strnlen(text, kSize)};
}

bool is_control(char c) { return (c > 0 && c < ' ' && c != '\n') || c == '\x7f'; }

std::string printable(std::string_view text) {
  std::string result(text);
  std::ranges::replace_if(result, is_control, '?');
  return result;
}

Verdict refusal(std::string reason) {
  return {.kind = Verdict::Kind::refused, .reason = std::move(reason)};
}

/// Judges the rank and the number of ranks in a hello.
Verdict judge_rank(const Hello& hello, const Hello& own) {
  if (hello.ranks != own.ranks) {
    return refusal(
        fmt::format("rank {} was told that there are {} ranks, and rank {} that there "
                    "are {}",
                    hello.rank, hello.ranks, own.rank, own.ranks));
  }
  if (hello.rank >= own.ranks) {
    return refusal(fmt::format("one of them is rank {} of {}", hello.rank, own.ranks));
  }
  if (hello.rank == own.rank) return refusal(fmt::format("two processes are rank {}", own.rank));
  return {.kind = Verdict::Kind::member};
}

/// Whether a rank takes a call of that purpose: ranks meet at the first, and call those before
/// them.
bool takes(const Hello& hello, const Hello& own) {
  const bool at_first = hello.purpose == Purpose::meeting || hello.purpose == Purpose::failure;
  return at_first ? own.rank == 0 : hello.rank > own.rank;
}

}  // namespace

std::string_view Hello::job_name() const { return text_of(job); }

void Hello::set_job(std::string_view name) {
  std::ranges::fill(job, '\0');
  std::ranges::copy(name.substr(0, sizeof job - 1), job);
}

std::string_view name_of(KeySource source) {
  switch (source) {
    case KeySource::environment: return "SPILLWAY_JOB_SECRET";
    case KeySource::file: return "a file of the run directory";
    default: return "nowhere";
  }
}

Verdict judge_head(const Hello& hello, const Hello& own) {
  if (hello.magic != Hello::kMagic) return {};
  if (hello.version != own.version) {
    return refusal(
        fmt::format("one of them is of another version of Spillway (its protocol is {}, here {})",
                    hello.version, own.version));
  }
  return {.kind = Verdict::Kind::member};
}

Verdict judge(const Hello& hello, const Hello& own) {
  Verdict head = judge_head(hello, own);
  if (head.kind != Verdict::Kind::member) return head;
  if (hello.purpose < Purpose::meeting || hello.purpose > Purpose::failure || hello.port > 65535 ||
      hello.key > KeySource::file) {
    return {};
  }
  if (hello.job_name() != own.job_name()) {
    return refusal(
        fmt::format("one of them is of job \"{}\", and who called it of job \"{}\"; give each job "
                    "a port of its own by SPILLWAY_MASTER_PORT",
                    printable(own.job_name()), printable(hello.job_name())));
  }
  if (hello.purpose != Purpose::failure) {
    Verdict rank = judge_rank(hello, own);
    if (rank.kind != Verdict::Kind::member) return rank;
  }
  if (hello.key != own.key) {
    return refusal(fmt::format("rank {} has the secret of the job from {}, and rank {} from {}",
                               hello.rank, name_of(hello.key), own.rank, name_of(own.key)));
  }
  return takes(hello, own) ? Verdict{.kind = Verdict::Kind::member} : Verdict{};
}

std::string_view Place::host_name() const { return text_of(host); }

std::string_view Notice::text() const { return text_of(reason); }

Error Notice::error() const {
  const char* const what =
      kind == Kind::refused ? "has turned this one away" : "has abandoned the group";
  return {static_cast<ErrorCode>(code), fmt::format("rank {} {}: {}", rank, what, text())};
}

Notice failure_notice(Rank rank, ErrorCode code, std::string_view reason) {
  Notice notice{
      .kind = Notice::Kind::failed, .rank = rank.value(), .code = static_cast<std::int32_t>(code)};
  std::ranges::copy(reason.substr(0, sizeof notice.reason - 1), notice.reason);
  return notice;
}

Notice refusal_notice(Rank rank, std::string_view reason) {
  Notice notice = failure_notice(rank, ErrorCode::invalid_argument, reason);
  notice.kind = Notice::Kind::refused;
  return notice;
}

std::optional<Notice> check_notice(Notice received) {
  if (received.magic != Notice::kMagic || received.rank >= kMostTcpRanks ||
      received.kind < Notice::Kind::welcome || received.kind > Notice::Kind::at_work ||
      received.code < 0 || received.code > static_cast<std::int32_t>(ErrorCode::internal)) {
    return std::nullopt;
  }
  received.reason[sizeof received.reason - 1] = '\0';
  std::ranges::replace_if(received.reason, is_control, '?');
  return received;
}

void check_frame(const Frame& received, const Frame& expected, Rank from) {
  if (received == expected) return;
  throw Error(ErrorCode::device_error,
              fmt::format("rank {} has sent transfer {} of {} bytes (mark {:08x}), and transfer {} "
                          "of {} bytes was expected: the connection is damaged",
                          from.value(), received.number, received.bytes, received.magic,
                          expected.number, expected.bytes));
}

}  // namespace spillway::comm::detail
