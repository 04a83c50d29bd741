// ValuesSource: masters from the values that a framework's tensors have at the start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/dtype.hpp"
#include "runtime/engine/embedded/plan/layout.hpp"
#include "runtime/engine/step/written_values.hpp"
#include "runtime/model/parameter_source.hpp"

namespace spillway::engine {

class ValuesSource final : public model::ParameterSource {
 public:
  /// Borrows the parameters' values, which outlive this object.
  ValuesSource(DType dtype, std::span<const ParameterRange> ranges,
               std::span<const EmbeddedParameter> parameters);

  void read(BlockIndex block, ElementCount first, std::span<float> target) const override;

 private:
  struct Part {
    ParameterRange range;
    const std::byte* values;
  };
  DType dtype_;
  std::vector<Part> parts_;  // in the order of blocks
};

}  // namespace spillway::engine
