// Header: what ranks tell each other of an operation before any of its bytes move, so that ranks
// that disagree end with an error that says in what. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "comm/detail/call.hpp"

namespace spillway::comm::detail {

/// Sent as it lies in memory: the ranks run the same program.
struct Header {
  std::uint64_t number = 0;  ///< which collective of this rank; 0 for transfers between two ranks
  std::uint64_t bytes = 0;   ///< that this rank shows to the others
  std::uint64_t message_bytes = 0;
  std::uint32_t ranks = 0;
  std::uint32_t root = 0;
  std::uint32_t group = 0;  ///< Members::tag
  Operation operation = Operation::barrier;
  SumTypes types{};
  std::uint8_t unused[1] = {};

  bool operator==(const Header&) const = default;
};

[[nodiscard]] inline std::span<const std::byte> as_bytes(const Header& header) {
  return std::as_bytes(std::span{&header, 1});
}
[[nodiscard]] inline std::span<std::byte> as_writable_bytes(Header& header) {
  return std::as_writable_bytes(std::span{&header, 1});
}

/// Returns what the two called and where they differ, for an error.
[[nodiscard]] std::string disagreement(Rank rank, const Header& header, Rank other,
                                       const Header& of_other);

}  // namespace spillway::comm::detail
