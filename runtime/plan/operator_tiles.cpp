#include "runtime/plan/operator_tiles.hpp"

namespace spillway::plan {

std::string_view why_no_operator_tiles(const Grid& grid, Tier saved) {
  if (grid.stages > 1) {
    return "in this version the layers of a pipeline are not cut into tiles; remove "
           "spillway.operator_tile or pipeline.stages";
  }
  if (grid.tensor > 1) {
    return "spillway.operator_tile excludes tensor_parallel.autotp_size, which cuts the matrices "
           "itself; remove one of the keys";
  }
  if (grid.replicas > 1) return "spillway.operator_tile with more than one rank is not supported";
  if (saved != Tier::device) {
    return "spillway.checkpointing: with spillway.operator_tile saved activations stay on the "
           "device; use \"auto\" instead of \"offload\"";
  }
  return {};
}

}  // namespace spillway::plan
