#include "tests/plan/theory.hpp"

#include <algorithm>

#include "runtime/base/error.hpp"

namespace spillway::plan {
namespace {

/// Bytes of one momentum or variance value without its share of a scale.
double moment_width(StateFormat format) {
  switch (format) {
    case StateFormat::fp32:
    case StateFormat::split: return 4;
    case StateFormat::bf16: return 2;
    case StateFormat::int8: return 1;
  }
  return 0;
}

double moment_bytes_per_parameter(StateFormat format) {
  const double scale = format == StateFormat::int8 ? 4.0 / 256 : 0;
  return moment_width(format) + scale;
}

double width(DType dtype) { return static_cast<double>(size_of(dtype)); }

/// Bytes of p16, g16 and the state, each divided by the ranks that share it.
struct ZeroParts {
  double parameters = 0;
  double gradients = 0;
  double state = 0;
};

ZeroParts zero_parts(ZeroStage stage, ElementCount count, std::uint32_t ranks) {
  check(ranks >= 1, ErrorCode::invalid_argument, "the number of ranks must be at least 1");
  const auto parameters = static_cast<double>(count.value());
  const auto shared_from = [&](ZeroStage first) { return stage >= first ? 1.0 / ranks : 1.0; };
  return {.parameters = 2 * parameters * shared_from(ZeroStage::stage3),
          .gradients = 2 * parameters * shared_from(ZeroStage::stage2),
          .state = kAdamStateBytes * parameters * shared_from(ZeroStage::stage1)};
}

}  // namespace

StateBytes state_bytes_per_parameter(StateFormat format, DType compute) {
  const double moment = moment_bytes_per_parameter(format);
  return {.parameter = width(compute),
          .master = format == StateFormat::fp32 ? 4.0 : 2.0,
          .momentum = moment,
          .variance = moment};
}

SlotTraffic slot_traffic_per_parameter(StateFormat format) {
  // The table counts no scales.
  const double moments = 2 * moment_width(format);
  // An fp32 master determines the narrow copy; a remainder does not, so that is written with it. It
  // need not be read: the host holds the narrow parameters anyway.
  if (format == StateFormat::fp32) return {.read = 4 + moments, .write = 4 + moments};
  return {.read = 2 + moments, .write = 4 + moments};
}

double zero_bytes_per_rank(ZeroStage stage, ElementCount parameters, std::uint32_t ranks) {
  const ZeroParts parts = zero_parts(stage, parameters, ranks);
  return parts.parameters + parts.gradients + parts.state;
}

OffloadedBytes zero_offload_bytes_per_rank(ZeroStage stage, ElementCount parameters,
                                           std::uint32_t ranks) {
  const ZeroParts parts = zero_parts(stage, parameters, ranks);
  return {.gpu = parts.parameters + parts.gradients, .host = parts.state};
}

ElementCount communication_elements(ZeroStage stage, ElementCount parameters) {
  // Reduce-scatter of gradients and all-gather of parameters; stage 3 gathers again for backward.
  return parameters * (stage == ZeroStage::stage3 ? 3 : 2);
}

Bytes ring_bytes_sent(ZeroStage stage, ElementCount parameters, std::uint32_t ranks, DType dtype) {
  check(ranks >= 1 && parameters.value() % ranks == 0, ErrorCode::invalid_argument,
        "ring_bytes_sent: pad the parameters to a multiple of the ranks");
  const ElementCount share = communication_elements(stage, parameters) / ranks;
  return Bytes{share.value() * (ranks - 1) * size_of(dtype)};
}

double transformer_parameters(const TransformerShape& shape) {
  return 12 * shape.layers * shape.hidden * shape.hidden;
}

double infinity_model_state_bytes(const TransformerShape& shape) {
  return 20 * transformer_parameters(shape);
}

double checkpoint_bytes(const TransformerShape& shape) {
  return 2 * shape.batch * shape.sequence * shape.hidden * shape.layers / shape.checkpoint_interval;
}

double full_activation_bytes(const TransformerShape& shape) {
  return activation_working_bytes(shape) * shape.layers / shape.checkpoint_interval;
}

double model_state_working_bytes(const TransformerShape& shape) {
  return 16 * shape.hidden * shape.hidden;
}

double activation_working_bytes(const TransformerShape& shape) {
  const double element_bytes = 16 * shape.hidden + 2 * shape.heads * shape.sequence;
  return shape.batch * shape.sequence * shape.checkpoint_interval * element_bytes;
}

double rule_of_thumb_activation_bytes(const TransformerShape& shape) {
  return 24 * shape.sequence * shape.batch * shape.hidden * shape.layers;
}

double unfused_activation_bytes(const TransformerShape& shape) {
  return 34 * shape.sequence * shape.batch * shape.hidden * shape.layers;
}

double parameter_intensity(const TransformerShape& shape) { return shape.sequence * shape.batch; }

double optimizer_state_intensity(const TransformerShape& shape) {
  return shape.sequence * shape.batch / 4;
}

double checkpoint_intensity(const TransformerShape& shape) {
  return 24 * shape.hidden * shape.checkpoint_interval;
}

double efficiency_without_overlap(const MovedWork& work) {
  const double fed = work.flops_per_byte * work.bytes_per_second;
  return fed / (fed + work.peak_flops);
}

double efficiency_with_overlap(const MovedWork& work) {
  return std::min(1.0, work.flops_per_byte * work.bytes_per_second / work.peak_flops);
}

double hiding_tokens(const HiddenResource& resource) {
  return resource.effective_flops / kFlopsPerParameterToken * resource.bytes_per_parameter /
         resource.bytes_per_second;
}

LinkVolume link_volume(Schedule schedule, const LinkWork& work) {
  const Bytes weights{work.parameters.value() * size_of(work.compute)};
  const std::uint64_t rounds = work.rounds;
  const std::uint64_t micro_batches = work.micro_batches;
  check(rounds >= 1 && micro_batches >= 1, ErrorCode::invalid_argument,
        "a step has at least one round of one micro-batch");
  switch (schedule) {
    case Schedule::micro_batch_major: {
      const std::uint64_t visits = micro_batches * rounds;
      return {.up = 2 * visits * weights,
              .down = visits * weights,
              .activations = 2 * visits * work.checkpoint};
    }
    case Schedule::layer_major:
      // Forward saves M and, but for the micro-batch still at hand, loads M-1; backward loads M and
      // passes M-1 gradients down and up: 5M-3 when nothing stays on the device.
      return {.up = 2 * rounds * weights,
              .down = rounds * weights,
              .activations = (5 * micro_batches - 3) * rounds * work.checkpoint};
    case Schedule::resident_parameters:
      return {.up = weights, .down = weights, .activations = Bytes{0}};
  }
  return {};
}

}  // namespace spillway::plan
