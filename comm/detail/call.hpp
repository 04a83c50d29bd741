// Call: one operation as the control thread asked for it, what its arguments must be, and what it
// sends. A value; the buffers belong to the caller until the operation is over. Pure; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/communicator.hpp"

namespace spillway::comm::detail {

struct Call {
  Operation operation = Operation::barrier;
  std::span<const std::byte> source{};
  std::span<std::byte> target{};
  SumTypes types{};                ///< of operations that sum
  Rank root{};                     ///< also whom a send or an exchange sends to
  Rank from{};                     ///< whom a receive or an exchange receives from
  std::span<const Rank> any_of{};  ///< whom a receive may receive from; empty: `from` alone
  Rank* sender = nullptr;          ///< becomes the one of `any_of` that it has received from
};

/// Throws `Error{invalid_argument}` unless the buffers, the types and the other ranks that `call`
/// of `rank` names fit one another.
void check_call(const Call& call, Rank rank, std::uint32_t ranks);

/// Returns whether only the ranks that a call names take part in it.
[[nodiscard]] bool is_between_two(Operation operation);

/// Size of the call's buffer of all ranks, whether or not this rank has one. Ranks agree on it.
[[nodiscard]] std::size_t bytes_of_all(const Call& call, std::uint32_t ranks);

/// Bytes that a rank sends, by the formulas of `Communicator::sent`.
class SentBytes {
 public:
  void add(const Call& call, Rank rank, std::uint32_t ranks);
  [[nodiscard]] Bytes of(Operation operation) const {
    return sent_[static_cast<std::size_t>(operation)];
  }
  [[nodiscard]] Bytes total() const;

 private:
  std::array<Bytes, kOperations> sent_{};
};

}  // namespace spillway::comm::detail
