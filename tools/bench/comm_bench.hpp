// Measures operations of a communicator against copies of the same bytes in memory, and against the
// all-reduces and parameter servers that others use, in turn. Every rank calls it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace spillway::bench {

struct CommCase {
  Bytes size = 64_MiB;  ///< the buffer of all ranks
  DType dtype = DType::fp32;
  std::size_t repetitions = 5;
  /// What every rank can send, and receive; absent: unknown, or as fast as memory.
  std::optional<double> link_gigabytes_per_second = std::nullopt;
};

struct CommResult {
  std::string name;
  std::vector<double> seconds;  ///< of every repetition, in order
  Bytes sent;                   ///< by the rank that sends most
  double least_seconds = 0;     ///< the time of the limit: memory or link, whichever is slower
  std::optional<bool> exact;    ///< the sum is that in the order of ranks; absent: no sum
  /// Whether training by this differs from training by sums in the order of ranks.
  bool other_mathematics = false;

  [[nodiscard]] double median() const;
  [[nodiscard]] double fraction_of_limit() const { return least_seconds / median(); }
};

struct CommMeasurement {
  std::uint32_t ranks = 1;
  /// Rate of all ranks together, each of which copies what an all-reduce has it receive.
  double copy_gigabytes_per_second = 0;
  std::vector<CommResult> results{};
};

/// Returns the same on every rank. Values are such that sums in the order of ranks are no others.
[[nodiscard]] CommMeasurement measure_comm(comm::Communicator& communicator, const CommCase& what);

}  // namespace spillway::bench
