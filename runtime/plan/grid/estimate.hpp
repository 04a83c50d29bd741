// What a step takes on a grid of data, tensor and pipeline parallel ranks, by closed formulas: an
// estimate that no run has confirmed. Parameters, gradients and state stay on the devices. The
// simulator is exact where this is quick: it plans the stages of one grid, with all tiers.
//
// What overlaps: the reduction of gradients with the last backward of a stage, and in stages 2 and
// 3 with each; the gathers of parameters with forward. Tensor traffic and messages between stages
// overlap with nothing.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/plan/grid/tensor_cut.hpp"
#include "runtime/plan/pipeline/schedule.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

/// What a step has to do, whatever the grid.
struct GridWork {
  Workload workload;  ///< of one rank that does it alone, a micro-batch in a round
  DecoderShape shape;
  std::uint32_t heads = 1;
  std::uint32_t kv_heads = 1;
  std::uint64_t micro_batches = 1;  ///< of the step, of all ranks
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  std::uint32_t chunks = 1;
};

struct GridMachine {
  double flops = 0;          ///< FLOP/s of each device in FWD-BWD, as `MachineProfile::gpu_flops`
  double device_update = 0;  ///< bytes per second of an update in device memory
  double inside = 0;         ///< bytes per second that a device sends to others of its machine
  double between = 0;        ///< the same to those of other machines
  Bytes device;              ///< memory of each
  std::uint32_t gpus = 1;    ///< ranks on a machine
};

/// One way to share out the work. Ranks of a tensor group have numbers in a row; then come the
/// replicas of a stage, then the stages.
struct GridChoice {
  TensorCut cut{};
  std::uint32_t replicas = 1;
  std::uint32_t stages = 1;
  std::uint32_t zero_stage = 0;
  bool keeps_activations = true;  ///< false: backward of a layer runs its forward again

  [[nodiscard]] std::uint32_t ranks() const { return cut.ranks() * replicas * stages; }
};

/// The pipeline of a choice, which its other properties do not change.
struct GridPipeline {
  Pipeline pipeline;
  std::vector<std::vector<Pass>> passes;
  std::vector<BlockRange> parts;  ///< as `cut_layers` returns them
};
[[nodiscard]] GridPipeline pipeline_on(const GridWork& work, std::uint32_t replicas,
                                       std::uint32_t stages);

/// Bytes on the rank that needs most.
struct GridMemory {
  double parameters = 0;   ///< in the compute dtype, with two gathered blocks in stage 3
  double gradients = 0;    ///< fp32 sums
  double state = 0;        ///< master, momentum and variance in fp32
  double activations = 0;  ///< those that the workload says this program saves
  double workspace = 0;

  [[nodiscard]] double total() const {
    return parameters + gradients + state + activations + workspace;
  }
};
[[nodiscard]] GridMemory memory_on(const GridWork& work, const GridPipeline& pipeline,
                                   const GridChoice& choice);

/// Parts of a step, in seconds, on the stage that is busy for longest; they add up to the step.
struct GridSeconds {
  double compute = 0;
  double recompute = 0;
  double tensor = 0;  ///< traffic among the ranks of a tensor group
  double data = 0;    ///< what nothing hides of the traffic among replicas
  double bubble = 0;  ///< the stage waits for others, or for their messages
  double update = 0;

  [[nodiscard]] double step() const {
    return compute + recompute + tensor + data + bubble + update;
  }
  /// Name of the largest part; for `recompute` "memory", which has no room for activations.
  [[nodiscard]] std::string_view bound() const;
  /// Name of the largest part beside compute.
  [[nodiscard]] std::string_view largest_loss() const;
};
[[nodiscard]] GridSeconds seconds_on(const GridWork& work, const GridPipeline& pipeline,
                                     const GridMachine& machine, const GridChoice& choice);

}  // namespace spillway::plan
