// StageSums: numbers that each stage of a pipeline, or each rank of a tensor group, has a part of,
// added up so that every rank decides alike. Control thread only.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/communicator.hpp"

namespace spillway::engine {

class StageSums {
 public:
  /// `line` has those ranks, and outlives this object; null: there is one. `most`: numbers at once.
  StageSums(comm::Communicator* line, std::size_t most)
      : line_(line), all_(line == nullptr ? 0 : line->ranks() * most) {}

  /// Each number becomes the sum of what the ranks give, in their order. Blocks.
  void add_up(std::span<double> numbers);

 private:
  comm::Communicator* line_;
  std::vector<double> all_;  // by stage
};

}  // namespace spillway::engine
