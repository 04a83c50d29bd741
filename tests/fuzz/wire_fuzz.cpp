// Any bytes as what a rank receives, from whoever connects and from other ranks: an Error, or a
// value that is in range.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "comm/detail/card.hpp"
#include "comm/tcp/proof.hpp"
#include "comm/tcp/wire.hpp"
#include "runtime/base/error.hpp"

namespace {

using namespace spillway::comm::detail;
using spillway::Error;
using spillway::Rank;

/// Returns the first bytes of `input` as a T whose magic, if it is long enough, is right: nearly
/// everything else is refused at once.
template <class T>
T value_of(std::span<const std::uint8_t> input) {
  T value{};
  const auto magic = value.magic;
  std::memcpy(&value, input.data(), std::min(input.size(), sizeof value));
  if (input.size() > sizeof value) value.magic = magic;
  return value;
}

void hear_hello(std::span<const std::uint8_t> input, std::uint32_t rank) {
  Hello own{.rank = rank, .ranks = 3};
  own.set_job("job");
  const Hello hello = value_of<Hello>(input);
  const Verdict verdict = judge(hello, own);
  SPILLWAY_ASSERT(verdict.reason.empty() == (verdict.kind != Verdict::Kind::refused));
  SPILLWAY_ASSERT(std::ranges::none_of(verdict.reason, [](char c) { return c == '\x1b'; }));
  if (verdict.kind != Verdict::Kind::member) return;
  const bool is_rank = hello.rank < own.ranks && hello.rank > own.rank;
  SPILLWAY_ASSERT(is_rank || (own.rank == 0 && hello.purpose == Purpose::failure));
  SPILLWAY_ASSERT(hello.port < 65536);
  SPILLWAY_ASSERT(hello.job_name() == "job" && hello.key == own.key);
  SPILLWAY_ASSERT(judge_head(hello, own).kind == Verdict::Kind::member);
}

void hear_hello_as_first(std::span<const std::uint8_t> input) { hear_hello(input, 0); }
void hear_hello_as_second(std::span<const std::uint8_t> input) { hear_hello(input, 1); }

/// Nobody proves anything without the key, whatever he says of a challenge.
void hear_proof(std::span<const std::uint8_t> input) {
  static const Key key = key_of("the secret of this job");
  const Proof proof = value_of<Proof>(input);
  SPILLWAY_ASSERT(!is_proved(key, Side::caller, Hello{}, Challenge{}, proof));
}

void hear_notice(std::span<const std::uint8_t> input) {
  const auto notice = check_notice(value_of<Notice>(input));
  if (!notice.has_value()) return;
  SPILLWAY_ASSERT(notice->rank < kMostTcpRanks && notice->text().size() < sizeof notice->reason);
  SPILLWAY_ASSERT(name_of(notice->error().code()) != "");
  SPILLWAY_ASSERT(std::ranges::none_of(notice->text(), [](char c) { return c == '\x1b'; }));
}

void hear_frame(std::span<const std::uint8_t> input) {
  const Frame expected{.number = 7, .bytes = 4096};
  const Frame frame = value_of<Frame>(input);
  check_frame(frame, expected, Rank{0});
  SPILLWAY_ASSERT(frame.bytes == expected.bytes);
}

void compare_ranks(std::span<const std::uint8_t> input) {
  constexpr std::string_view kSettings = "model: m\nsteps: 7";
  const Card own = card_of({.version = "0.1", .ranks = 2, .settings = kSettings});
  Card other{};
  const std::size_t taken = std::min(input.size(), sizeof other);
  std::memcpy(&other, input.data(), taken);
  compare_cards(std::array{own, other});
  SPILLWAY_ASSERT(other.version_name() == "0.1" && other.ranks == 2);
  SPILLWAY_ASSERT(other.settings_bytes <= kMostSettings);
  const auto rest = std::as_bytes(input.subspan(taken));
  const std::string_view settings(reinterpret_cast<const char*>(rest.data()), rest.size());
  compare_settings(kSettings, Rank{1}, settings);
  SPILLWAY_ASSERT(settings == kSettings);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (const auto target : {hear_hello_as_first, hear_hello_as_second, hear_proof, hear_notice,
                            hear_frame, compare_ranks}) {
    try {
      target({data, size});
    } catch (const Error& error) {
      SPILLWAY_ASSERT(error.code() == spillway::ErrorCode::invalid_argument ||
                      error.code() == spillway::ErrorCode::device_error);
    }
  }
  return 0;
}
