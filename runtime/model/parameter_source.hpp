// Where a model's parameters come from at the start: a checkpoint or random numbers.
#pragma once

#include <span>

#include "runtime/base/units.hpp"

namespace spillway::model {

/// Gives any part of any block, so that a model is never in memory as a whole. Any number of
/// threads may read at once; what is read does not depend on how it is cut into reads.
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  /// Reads elements [first, first + target.size()) of a block as fp32; its padding is zero.
  virtual void read(BlockIndex block, ElementCount first, std::span<float> target) const = 0;
};

}  // namespace spillway::model
