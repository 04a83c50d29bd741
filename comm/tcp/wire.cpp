#include "comm/tcp/wire.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace spillway::comm::detail {
namespace {

template <std::size_t kSize>
std::string_view text_of(const char (&text)[kSize]) {
  return {text, ::strnlen(text, kSize)};
}

[[noreturn]] void refuse(const std::string& difference) {
  throw Error(ErrorCode::invalid_argument, "the ranks cannot meet: " + difference);
}

}  // namespace

std::string_view Hello::job_name() const { return text_of(job); }

void Hello::set_job(std::string_view name) {
  std::ranges::fill(job, '\0');
  std::ranges::copy(name.substr(0, sizeof job - 1), job);
}

Visitor check_hello(const Hello& hello, const Hello& own) {
  if (hello.magic != Hello::kMagic) return Visitor::stranger;
  if (hello.job_name() != own.job_name()) return Visitor::other_job;
  if (hello.version != own.version) {
    refuse(
        fmt::format("one of them is of another version of Spillway (its protocol is {}, here {})",
                    hello.version, own.version));
  }
  if (hello.ranks != own.ranks) {
    refuse(fmt::format("rank {} was told that there are {} ranks, and rank {} that there are {}",
                       hello.rank, hello.ranks, own.rank, own.ranks));
  }
  if (hello.rank >= own.ranks) {
    refuse(fmt::format("one of them is rank {} of {}", hello.rank, own.ranks));
  }
  if (hello.rank == own.rank) refuse(fmt::format("two processes are rank {}", own.rank));
  if (hello.port > 65535 || hello.purpose < Purpose::meeting || hello.purpose > Purpose::data) {
    return Visitor::stranger;
  }
  return Visitor::member;
}

std::string_view Place::host_name() const { return text_of(host); }

std::string_view Notice::text() const { return text_of(reason); }

Error Notice::error() const {
  return {static_cast<ErrorCode>(code),
          fmt::format("rank {} has abandoned the group: {}", rank, text())};
}

Notice failure_notice(Rank rank, ErrorCode code, std::string_view reason) {
  Notice notice{
      .kind = Notice::Kind::failed, .rank = rank.value(), .code = static_cast<std::int32_t>(code)};
  std::ranges::copy(reason.substr(0, sizeof notice.reason - 1), notice.reason);
  return notice;
}

std::optional<Notice> check_notice(Notice received) {
  if (received.magic != Notice::kMagic || received.rank >= kMostTcpRanks ||
      received.kind < Notice::Kind::welcome || received.kind > Notice::Kind::failed ||
      received.code < 0 || received.code > static_cast<std::int32_t>(ErrorCode::internal)) {
    return std::nullopt;
  }
  received.reason[sizeof received.reason - 1] = '\0';
  std::ranges::replace_if(
      received.reason, [](char c) { return (c > 0 && c < ' ' && c != '\n') || c == '\x7f'; }, '?');
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
