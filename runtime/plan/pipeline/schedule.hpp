// How a pipeline is cut, and the order in which each stage runs its passes. A pipeline cuts the
// layers into stages, one to a rank; interleaved, a stage has several chunks of layers, and chunk c
// of stage s is the part c * stages + s of the model. A pass takes one round's micro-batches
// through one chunk.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/orders.hpp"
#include "runtime/plan/stage.hpp"

namespace spillway::plan {

/// How a pipeline is cut and run.
struct Pipeline {
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  std::uint32_t stages = 1;
  std::uint32_t rounds = 1;  ///< what the published formulas call micro-batches
  std::uint32_t chunks = 1;  ///< of a stage; more than one only where `schedule` is interleaved
  bool tied_head = false;    ///< the head uses the embedding's parameters
  /// Number of layers of each part in the model's order, embedding and head among them; empty: the
  /// FLOPs of parts are balanced.
  std::vector<std::uint32_t> layers{};
};

/// Returns the passes of each stage in their order, from an empty pipeline to an empty one. In all
/// schedules the passes backward of a chunk are in the order of rounds, so that gradients add up in
/// the same order. Throws `Error{invalid_argument}` for an invalid pipeline: interleaved, its
/// rounds are a multiple of its stages; in PipeDream-2BW they are at least as many.
[[nodiscard]] std::vector<std::vector<Pass>> passes_of(const Pipeline& pipeline);

/// Number of rounds that a stage has in flight at once: from the oldest whose backward is to come
/// to the newest whose forward has run. The stage keeps the activations of each chunk for so many.
[[nodiscard]] std::uint32_t rounds_in_flight(const std::vector<Pass>& passes);

}  // namespace spillway::plan
