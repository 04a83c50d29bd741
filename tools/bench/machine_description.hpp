// A machine that is not here, described by a small JSON file: docs/machines/*.json. `spillway plan
// --machine NAME_OR_FILE` plans for it instead of measuring this one.
//
// Keys: `name`; `basis` (assumed, measured); `gpu`, as the driver names it; `generation`, its
// compute capability (90 for 9.0); rates in 10^12 FLOP/s or 10^9 bytes/s; `op_overhead_us`; the
// three capacities as sizes. `sources`, `generation` and `attention_backward_deterministic_tflops`
// may be left out. For many ranks: `gpus` of the machine (1), which share its host memory and its
// disks, and what a GPU sends to others of the machine
// (`nvlink_gbps`) and to those of other machines (`net_gbps`). `memory` and `drives` have what else
// the machine may be built with, by name: docs/machines.md. An unknown key is refused.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/train_options.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::bench {

/// A deterministic backward pass of attention stores the gradient of every score and reads it
/// again. So much slower it is taken to be where a description does not say: as measured on one
/// H100 at 8,192 tokens of Llama-3-8B, 480 against 353 TFLOP/s (docs/measurements.md).
inline constexpr double kDeterministicSlowdown = 1.36;

struct MachineDescription {
  std::string name;
  std::string basis;
  std::string gpu;
  std::uint32_t generation = 0;  ///< compute capability of it, 90 for 9.0; 0: not known
  double matmul_flops = 0;       ///< sustained, at the model's shapes and in 16 bits
  double attention_forward_flops = 0;
  double attention_backward_flops = 0;
  double attention_backward_deterministic_flops = 0;
  bool assumes_slowdown = false;  ///< the one before is the other over kDeterministicSlowdown
  /// All rates but `gpu_flops`, which depends on the model: see `profile_for`.
  plan::MachineProfile lanes;
  plan::Budgets capacity;
  std::uint32_t gpus = 1;
  std::uint32_t ranks = 1;  ///< that use the machine
  double inside = 0;   ///< bytes per second that a GPU sends to others of the machine; 0: not known
  double between = 0;  ///< the same to GPUs of other machines
  std::vector<std::string> memory;  ///< sizes of host memory by name, the smallest first
  std::vector<std::string> drives;  ///< sets of drives by name, likewise
};

/// The names of a size of host memory and of a set of drives; empty: as the description itself.
struct MachineVariant {
  std::string memory;
  std::string drives;
};

/// The ranks of a job, one for each GPU, on machines with as many each.
struct Nodes {
  std::uint32_t ranks = 1;
  std::uint32_t nodes = 1;
};

/// Makes of a description what one of the ranks has of its machine: lanes and capacities that it
/// shares with the others there are divided. Throws `Error{invalid_argument}` for more ranks than
/// GPUs, and where the rate of the network that they use is not known.
void share_among_ranks(MachineDescription& machine, const Nodes& nodes);

/// Throws `Error{invalid_argument}` naming the key, its value and what is allowed. Variants that
/// are not asked for are read too, and refused likewise.
[[nodiscard]] MachineDescription parse_machine(std::string_view text, std::string_view origin,
                                               const MachineVariant& variant = {});
[[nodiscard]] MachineDescription load_machine(const std::filesystem::path& file);

/// Returns bytes that FWD-BWD of one micro-batch, activations kept, passes through device memory
/// outside the matrix products and attention: norms, rotations, the MLP's activation, residuals,
/// logits, and the fp32 accumulators that each weight gradient is added to.
[[nodiscard]] double passing_bytes(const model::ModelConfig& config,
                                   const plan::Workload& workload);

/// Returns the profile that a plan of this model meets on the machine. `gpu_flops` is the rate at
/// which products, attention and passing over memory, one after the other, do the workload's FLOPs.
/// `options` are resolved.
[[nodiscard]] plan::MachineProfile profile_for(const MachineDescription& machine,
                                               const model::ModelConfig& config,
                                               const plan::Workload& workload,
                                               const config::TrainOptions& options);

}  // namespace spillway::bench
