// The positions of a micro-batch's tokens, sorted by token and then by position: a stable radix
// sort by one team, which is fast enough beside the gradient that it serves (16 tokens a lane and
// pass for 8192 of them) and needs no atomic.
#pragma once

#include "runtime/model/cuda/kernels/bodies/runner.hpp"

namespace spillway::model::cuda::bodies {

/// One occurrence of a token: token << 32 | position.
using Occurrence = std::uint64_t;

SPILLWAY_HOST_DEVICE constexpr std::uint64_t token_of(Occurrence occurrence) {
  return occurrence >> 32;
}
SPILLWAY_HOST_DEVICE constexpr std::uint64_t position_of(Occurrence occurrence) {
  return occurrence & 0xffffffffU;
}

inline constexpr unsigned kDigitBits = 4;

/// Number of passes over keys of up to `vocabulary`, which stands for tokens outside it.
constexpr unsigned sort_passes(std::uint64_t vocabulary) {
  unsigned bits = 1;
  while ((vocabulary >> bits) != 0) ++bits;
  return (bits + kDigitBits - 1) / kDigitBits;
}

/// Each lane owns a run of `count` occurrences: it counts their digits, learns where each digit of
/// its run goes and moves the run there in order. Passes write `even`, `odd`, `even` and so on.
struct TokenSort {
  const std::int32_t* tokens;
  std::uint64_t count, vocabulary;
  Occurrence* even;
  Occurrence* odd;
  unsigned passes;

  static constexpr unsigned kLanes = 512;
  static constexpr unsigned kDigits = 1U << kDigitBits;
  static constexpr std::size_t kShared = (kDigits * kLanes + 2 * kLanes) * sizeof(std::uint32_t);

  [[nodiscard]] SPILLWAY_HOST_DEVICE Occurrence* target(unsigned pass) const {
    return pass % 2 == 0 ? even : odd;
  }
  [[nodiscard]] const Occurrence* result() const { return target(passes - 1); }

  SPILLWAY_HOST_DEVICE Occurrence first_source(std::uint64_t i) const {
    const auto token = static_cast<std::uint64_t>(tokens[i]);  // a negative one becomes huge
    return (token < vocabulary ? token : vocabulary) << 32 | i;
  }
  SPILLWAY_HOST_DEVICE Occurrence source(unsigned pass, std::uint64_t i) const {
    return pass == 0 ? first_source(i) : target(pass - 1)[i];
  }
  SPILLWAY_HOST_DEVICE static unsigned digit(Occurrence occurrence, unsigned pass) {
    return static_cast<unsigned>(token_of(occurrence) >> (pass * kDigitBits)) & (kDigits - 1);
  }

  /// Turns counts[0 .. kDigits * lanes) into exclusive sums.
  template <class Team>
  SPILLWAY_HOST_DEVICE static void exclusive_sums(Team team, std::uint32_t* counts,
                                                  std::uint32_t* totals) {
    team.each([&](unsigned lane) {
      std::uint32_t total = 0;
      for (unsigned i = 0; i < kDigits; ++i) total += counts[lane * kDigits + i];
      totals[lane] = total;
    });
    // Inclusive sums of the lanes' totals, from one half of `totals` to the other and back.
    std::uint32_t* from = totals;
    std::uint32_t* to = totals + Team::kLanes;
    for (unsigned step = 1; step < Team::kLanes; step *= 2) {
      team.each(
          [&](unsigned lane) { to[lane] = from[lane] + (lane >= step ? from[lane - step] : 0); });
      std::uint32_t* const last = from;
      from = to;
      to = last;
    }
    team.each([&](unsigned lane) {
      std::uint32_t before = lane > 0 ? from[lane - 1] : 0;
      for (unsigned i = 0; i < kDigits; ++i) {
        const std::uint32_t here = counts[lane * kDigits + i];
        counts[lane * kDigits + i] = before;
        before += here;
      }
    });
  }

  template <class Team>
  SPILLWAY_HOST_DEVICE void operator()(Team team, std::uint64_t /*index*/,
                                       std::byte* shared) const {
    auto* counts = reinterpret_cast<std::uint32_t*>(shared);  // [digit, lane]
    auto* totals = counts + kDigits * Team::kLanes;
    const std::uint64_t run = (count + Team::kLanes - 1) / Team::kLanes;
    for (unsigned pass = 0; pass < passes; ++pass) {
      const auto for_run = [&](unsigned lane, auto visit) {
        const std::uint64_t end = (lane + 1) * run;
        for (std::uint64_t i = lane * run; i < (end < count ? end : count); ++i) {
          const Occurrence occurrence = source(pass, i);
          visit(occurrence, counts[digit(occurrence, pass) * Team::kLanes + lane]);
        }
      };
      team.each([&](unsigned lane) {
        for (unsigned d = 0; d < kDigits; ++d) counts[d * Team::kLanes + lane] = 0;
        for_run(lane, [](Occurrence, std::uint32_t& number) { ++number; });
      });
      exclusive_sums(team, counts, totals);
      Occurrence* out = target(pass);
      team.each([&](unsigned lane) {
        for_run(lane,
                [&](Occurrence occurrence, std::uint32_t& place) { out[place++] = occurrence; });
      });
    }
  }
};

}  // namespace spillway::model::cuda::bodies
