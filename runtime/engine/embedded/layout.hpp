// EmbeddedLayout: how registered parameters lie in blocks, the units of streaming and of the norm.
// Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/embedded_trainer.hpp"
#include "runtime/engine/step/op_actions.hpp"
#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

/// Where a parameter lies in its block. It starts on a quantization block of format int8, so that
/// no two parameters share a scale.
struct EmbeddedPlace {
  std::uint32_t block = 0;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

struct EmbeddedLayout {
  std::vector<EmbeddedPlace> places;  ///< by parameter
  plan::Workload workload;
  std::vector<BlockGroups> groups;        ///< by block, each of one group
  std::vector<std::uint32_t> parameters;  ///< by block: how many lie in it
};

/// Packs parameters into blocks in their order. A block holds parameters of one group, and a large
/// parameter is a block of its own. Throws `Error{invalid_argument}` for a parameter without
/// elements, without values, with a name that another has, or of a group that the options lack, and
/// for options that no trainer can have.
[[nodiscard]] EmbeddedLayout make_layout(const EmbeddedOptions& options,
                                         std::span<const EmbeddedParameter> parameters);

/// Returns the placement of all state in one tier.
[[nodiscard]] plan::Placement embedded_placement(const EmbeddedOptions& options,
                                                 const plan::Workload& workload);

}  // namespace spillway::engine
