#include "comm/baselines/all_reduce.hpp"

#include <array>
#include <vector>

#include "comm/detail/ordered_sum.hpp"
#include "runtime/base/error.hpp"

namespace spillway::comm {
namespace {

/// What every baseline is called with.
struct Reduction {
  Communicator& communicator;
  std::span<std::byte> data;
  std::span<std::byte> scratch;
  DType dtype;

  [[nodiscard]] std::uint32_t ranks() const { return communicator.ranks(); }
  [[nodiscard]] std::uint32_t rank() const { return communicator.rank().value(); }
  [[nodiscard]] std::uint32_t after(std::uint32_t steps) const {
    return (rank() + steps) % ranks();
  }
  [[nodiscard]] std::uint32_t before(std::uint32_t steps) const {
    return (rank() + ranks() - steps) % ranks();
  }
  /// Returns where the data of another rank is kept.
  [[nodiscard]] std::span<std::byte> copy_of(std::uint32_t other) const {
    return scratch.subspan(data.size() * (other < rank() ? other : other - 1), data.size());
  }
  [[nodiscard]] std::span<std::byte> part(std::uint32_t index) const {
    const std::size_t elements = data.size() / size_of(dtype);
    const std::size_t first = elements * index / ranks() * size_of(dtype);
    return data.subspan(first, elements * (index + 1) / ranks() * size_of(dtype) - first);
  }
  /// The data becomes the sum of it and the copies.
  void sum_copies() const {
    std::vector<const std::byte*> addends(ranks());
    for (std::uint32_t other = 0; other < ranks(); ++other) {
      addends[other] = other == rank() ? data.data() : copy_of(other).data();
    }
    detail::ordered_sum(addends, data, {dtype, dtype});
  }
};

void each_to_all(const Reduction& all) {
  for (std::uint32_t step = 1; step < all.ranks(); ++step) {
    const std::uint32_t from = all.before(step);
    all.communicator.exchange(all.data, Rank{all.after(step)}, all.copy_of(from), Rank{from})
        .wait();
  }
  all.sum_copies();
}

void master(const Reduction& all) {
  if (all.rank() != 0) {
    all.communicator.send(all.data, Rank{0}).wait();
    all.communicator.receive(all.data, Rank{0}).wait();
    return;
  }
  for (std::uint32_t worker = 1; worker < all.ranks(); ++worker) {
    all.communicator.receive(all.copy_of(worker), Rank{worker}).wait();
  }
  all.sum_copies();
  for (std::uint32_t worker = 1; worker < all.ranks(); ++worker) {
    all.communicator.send(all.data, Rank{worker}).wait();
  }
}

// Part r begins at rank r and is whole once it has been round the ring; then it goes round again.
void ring(const Reduction& all) {
  const Rank next{all.after(1)};
  const Rank previous{all.before(1)};
  for (std::uint32_t step = 0; step + 1 < all.ranks(); ++step) {
    const std::span<std::byte> mine = all.part(all.before(step + 1));
    const std::span<std::byte> addend = all.scratch.first(mine.size());
    all.communicator.exchange(all.part(all.before(step)), next, addend, previous).wait();
    const std::array<const std::byte*, 2> addends{addend.data(), mine.data()};
    detail::ordered_sum(addends, mine, {all.dtype, all.dtype});
  }
  for (std::uint32_t step = 0; step + 1 < all.ranks(); ++step) {
    const std::uint32_t whole = all.after(1) + all.ranks() - step;
    all.communicator
        .exchange(all.part(whole % all.ranks()), next, all.part((whole - 1) % all.ranks()),
                  previous)
        .wait();
  }
}

}  // namespace

std::string_view name_of(Baseline baseline) {
  switch (baseline) {
    case Baseline::each_to_all: return "each_to_all";
    case Baseline::master: return "master";
    case Baseline::ring: return "ring";
  }
  return "";
}

std::size_t scratch_bytes(Baseline baseline, std::size_t bytes, std::uint32_t ranks) {
  return baseline == Baseline::ring ? bytes / ranks + sizeof(float) : bytes * (ranks - 1);
}

void all_reduce(Baseline baseline, Communicator& communicator, std::span<std::byte> data,
                std::span<std::byte> scratch, DType dtype) {
  check(scratch.size() >= scratch_bytes(baseline, data.size(), communicator.ranks()),
        ErrorCode::invalid_argument, "the scratch memory of an all-reduce is too small");
  check(data.size() % size_of(dtype) == 0, ErrorCode::invalid_argument,
        "a buffer to sum must hold whole elements");
  const Reduction all{communicator, data, scratch, dtype};
  switch (baseline) {
    case Baseline::each_to_all: return each_to_all(all);
    case Baseline::master: return master(all);
    case Baseline::ring: return ring(all);
  }
}

}  // namespace spillway::comm
