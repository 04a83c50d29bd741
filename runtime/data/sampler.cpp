#include "runtime/data/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "runtime/base/error.hpp"

namespace spillway::data {
namespace {

constexpr unsigned kRounds = 8;
// A wider domain than needed costs steps of the walk only; a narrow one has few permutations.
constexpr unsigned kMinHalfBits = 4;

/// A bijection of 64-bit words that scatters every bit (the finalizer of splitmix64).
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

/// A Feistel network over words of 2 * half_bits bits: a bijection whatever the round function is.
std::uint64_t permute_word(std::uint64_t word, unsigned half_bits, std::uint64_t key) {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = word >> half_bits;
  std::uint64_t right = word & mask;
  for (unsigned round = 0; round < kRounds; ++round) {
    const std::uint64_t round_key = mix(key + round * 0x9e3779b97f4a7c15U);
    const std::uint64_t next = left ^ (mix(right + round_key) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits) | right;
}

/// Where `index` goes in a permutation of [0, count) keyed by `key`. Words that fall outside are
/// permuted again: following a cycle of a bijection from inside, one comes back inside.
std::uint64_t permute_index(std::uint64_t index, std::uint64_t count, std::uint64_t key) {
  const auto bits = static_cast<unsigned>(std::bit_width(count - 1));
  const unsigned half_bits = std::max(kMinHalfBits, (bits + 1) / 2);
  std::uint64_t word = index;
  do {
    word = permute_word(word, half_bits, key);
  } while (word >= count);
  return word;
}

}  // namespace

Sampler::Sampler(std::uint64_t tokens, std::uint32_t context, Order order, std::uint64_t seed)
    : windows_(0), context_(context), order_(order), seed_(seed) {
  check(context > 0, ErrorCode::invalid_argument, "a window needs a context of at least 1 token");
  if (tokens <= context) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} tokens do not hold one window: a context of {} needs {} (the last "
                            "input's target included); give more text or a shorter context",
                            tokens, context, std::uint64_t{context} + 1));
  }
  windows_ = (tokens - 1) / context;
}

std::uint64_t Sampler::first_token(std::uint64_t cursor) const {
  const std::uint64_t epoch = cursor / windows_;
  const std::uint64_t index = cursor % windows_;
  if (order_ == Order::sequential) return index * context_;
  // Mixed apart first: seed 1, epoch 2 and seed 2, epoch 1 must not share an order.
  const std::uint64_t key = mix(mix(seed_ + 0x9e3779b97f4a7c15U) + epoch);
  return permute_index(index, windows_, key) * context_;
}

}  // namespace spillway::data
