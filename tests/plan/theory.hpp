// The published formulas of memory, traffic and efficiency that plans are checked against. They
// share no code with the planner, and theory_test.cpp checks them against the papers' tables.
//
// Sources: ZeRO (table 1), ZeRO-Offload (section 3), ZeRO-Infinity (figure 2, section 4). Where a
// paper misprints, the formula holds. Results that divide by ranks or rates are double; counts of
// bytes that a run must meet exactly are `Bytes`.
#pragma once

#include <cstdint>

#include "runtime/base/dtype.hpp"
#include "runtime/base/state_format.hpp"
#include "runtime/base/units.hpp"

namespace spillway::plan {

// ---- State of one parameter ---------------------------------------------------------------------

/// Counts bytes per parameter on host and disk. int8 moments carry one fp32 scale per 256 values.
struct StateBytes {
  double parameter = 0;  ///< the narrow copy that goes up to the device
  double master = 0;     ///< what the master adds to it: 4, or the 16-bit remainder
  double momentum = 0;
  double variance = 0;

  [[nodiscard]] double total() const { return parameter + master + momentum + variance; }
};

/// Returns fp32 14, split 12, bf16 8, int8 6.03 at 16-bit compute. `compute` widens `parameter`.
[[nodiscard]] StateBytes state_bytes_per_parameter(StateFormat format, DType compute = DType::bf16);

/// What a step reads from and writes to disk when state lives there. A slot on disk holds all that
/// recovery needs, so the narrow parameter is written even where it is not read.
struct SlotTraffic {
  double read = 0;
  double write = 0;
};
[[nodiscard]] SlotTraffic slot_traffic_per_parameter(StateFormat format);

// ---- ZeRO: memory and communication of data-parallel ranks --------------------------------------

enum class ZeroStage : std::uint8_t { data_parallel, stage1, stage2, stage3 };

/// Counts the bytes of optimizer state per parameter of mixed-precision Adam: master, momentum,
/// variance.
inline constexpr double kAdamStateBytes = 12;

/// Returns the model state of one rank: p16, g16 and the state, each divided by `ranks` from its
/// stage on.
[[nodiscard]] double zero_bytes_per_rank(ZeroStage stage, ElementCount parameters,
                                         std::uint32_t ranks);

/// Holds the same with the optimizer state in host memory.
struct OffloadedBytes {
  double gpu = 0;
  double host = 0;
};
[[nodiscard]] OffloadedBytes zero_offload_bytes_per_rank(ZeroStage stage, ElementCount parameters,
                                                         std::uint32_t ranks);

/// Counts the elements each rank communicates in a step, as the papers count: 2P, or 3P in stage 3.
[[nodiscard]] ElementCount communication_elements(ZeroStage stage, ElementCount parameters);
/// Counts the bytes each rank sends in a step over rings. `parameters` is padded to a multiple of
/// `ranks`.
[[nodiscard]] Bytes ring_bytes_sent(ZeroStage stage, ElementCount parameters, std::uint32_t ranks,
                                    DType dtype);

// ---- ZeRO-Infinity: memory of a transformer -----------------------------------------------------

/// Is a transformer and its batch, as the papers describe them.
struct TransformerShape {
  double layers = 0;
  double hidden = 0;
  double heads = 0;
  double batch = 0;
  double sequence = 0;
  double checkpoint_interval = 1;  ///< blocks between two activation checkpoints
};

[[nodiscard]] double transformer_parameters(const TransformerShape& shape);  ///< 12*L*h^2
/// Counts 20 bytes a parameter: ZeRO-Infinity keeps a gradient in fp32 as well.
[[nodiscard]] double infinity_model_state_bytes(const TransformerShape& shape);
/// Counts 16-bit boundary activations of one micro-batch: 2*b*s*h*L/ci.
[[nodiscard]] double checkpoint_bytes(const TransformerShape& shape);
/// Counts all activations of all layers, attention scores materialised.
[[nodiscard]] double full_activation_bytes(const TransformerShape& shape);
/// Counts parameters and gradients of the largest operator (h to 4h), in 16 bits: 16*h^2.
[[nodiscard]] double model_state_working_bytes(const TransformerShape& shape);
/// Activations between two checkpoints: b*s*ci*(16*h + 2*heads*s).
[[nodiscard]] double activation_working_bytes(const TransformerShape& shape);
/// Returns ZeRO's rule of thumb, 12 16-bit elements a layer: 24*s*b*h*L. For comparison only: the
/// planner counts the tensors that it keeps.
[[nodiscard]] double rule_of_thumb_activation_bytes(const TransformerShape& shape);
/// Counts all tensors of unfused layers, attention not materialised: 34*s*b*h*L.
[[nodiscard]] double unfused_activation_bytes(const TransformerShape& shape);

// ---- Efficiency and hiding ----------------------------------------------------------------------

/// Returns the FLOPs per byte moved (arithmetic intensity), per kind of traffic.
[[nodiscard]] double parameter_intensity(const TransformerShape& shape);        ///< s*b
[[nodiscard]] double optimizer_state_intensity(const TransformerShape& shape);  ///< s*b/4
[[nodiscard]] double checkpoint_intensity(const TransformerShape& shape);       ///< 24*h*ci

struct MovedWork {
  double flops_per_byte = 0;
  double bytes_per_second = 0;
  double peak_flops = 0;
};
/// Returns the share of the peak when every byte is moved before it is computed on.
[[nodiscard]] double efficiency_without_overlap(const MovedWork& work);
/// Returns the share of the peak when moves and computation run side by side.
[[nodiscard]] double efficiency_with_overlap(const MovedWork& work);

/// Counts the FLOPs per parameter and token with full recomputation: forward 2, again 2, backward
/// 4.
inline constexpr double kFlopsPerParameterToken = 8;

struct HiddenResource {
  double effective_flops = 0;
  double bytes_per_parameter = 0;  ///< moved in one step
  double bytes_per_second = 0;
};
/// Tokens a step needs so that computing takes no less than moving. Does not depend on the model.
[[nodiscard]] double hiding_tokens(const HiddenResource& resource);

// ---- Volumes over the link of one GPU in one step -----------------------------------------------

enum class Schedule : std::uint8_t { micro_batch_major, layer_major, resident_parameters };

struct LinkWork {
  ElementCount parameters{};  ///< P, padded
  DType compute = DType::bf16;
  std::uint32_t micro_batches = 1;  ///< M of one round
  std::uint32_t rounds = 1;         ///< R
  Bytes checkpoint{};               ///< C: boundary activations of one micro-batch, all layers
};
struct LinkVolume {
  Bytes up{};           ///< parameters to the device
  Bytes down{};         ///< gradients from the device, which sums no rounds
  Bytes activations{};  ///< both ways, if boundary tensors are offloaded: an upper bound for
                        ///< layer-major
};
/// Micro-batch-major order makes no difference between a micro-batch and a round: it visits the
/// parameters for each of its M*R micro-batches.
[[nodiscard]] LinkVolume link_volume(Schedule schedule, const LinkWork& work);

}  // namespace spillway::plan
