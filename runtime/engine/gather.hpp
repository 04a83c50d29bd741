// What every rank has, brought to all of them. Every rank calls each function. Control thread only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "comm/communicator.hpp"

namespace spillway::engine {

/// Returns what every rank has, by rank.
template <class Value>
std::vector<Value> gather(comm::Communicator& ranks, const Value& mine) {
  static_assert(std::is_trivially_copyable_v<Value>);
  std::vector<Value> all(ranks.ranks());
  ranks.all_gather(std::as_bytes(std::span{&mine, 1}), std::as_writable_bytes(std::span{all}))
      .wait();
  return all;
}

/// Returns the list of every rank, by rank. They may differ in length.
template <class Value>
std::vector<std::vector<Value>> gather_lists(comm::Communicator& ranks, std::vector<Value> mine) {
  static_assert(std::is_trivially_copyable_v<Value>);
  const std::vector<std::uint64_t> sizes = gather(ranks, std::uint64_t{mine.size()});
  const std::uint64_t longest = std::ranges::max(sizes);
  std::vector<std::vector<Value>> all(ranks.ranks());
  if (longest == 0) return all;
  mine.resize(longest);
  std::vector<Value> together(longest * ranks.ranks());
  ranks.all_gather(std::as_bytes(std::span{mine}), std::as_writable_bytes(std::span{together}))
      .wait();
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto own = std::span(together).subspan(rank * longest, sizes[rank]);
    all[rank].assign(own.begin(), own.end());
  }
  return all;
}

using MachineName = std::array<char, 256>;

/// Returns the name by which ranks know that they share a machine: the host's, and behind its end
/// the number of this start of the system, since machines may have one name.
[[nodiscard]] MachineName machine_name();

}  // namespace spillway::engine
