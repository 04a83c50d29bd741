#include "runtime/engine/prepare/workload.hpp"

#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/engine/device/model_runtime.hpp"
#include "runtime/model/row_ops.hpp"
#include "runtime/model/transformer.hpp"
#include "runtime/plan/pipeline/stale.hpp"
#include "runtime/plan/predict/flops.hpp"

namespace spillway::engine {
namespace {

/// Beyond so many passes no step is worth planning: the list of its operations alone takes
/// gigabytes.
constexpr std::uint64_t kMostPasses = 2'097'152;

plan::Workload workload_of(const model::ModelConfig& config, const model::Transformer& transformer,
                           const config::TrainOptions& options, const plan::Replicas& replicas) {
  plan::Workload workload;
  workload.replicas = replicas;
  const auto& blocks = transformer.layout().blocks;
  for (std::uint32_t b = 0; b < blocks.size(); ++b) {
    workload.blocks.push_back({.name = blocks[b].name,
                               .parameters = blocks[b].parameters,
                               .padded_parameters = plan::pad(blocks[b].parameters, replicas.count),
                               .forward_flops = transformer.forward_flops(b),
                               .backward_flops = transformer.backward_flops(b),
                               .saved_bytes = transformer.saved_bytes(b),
                               .layer = blocks[b].layer,
                               .feeds_backward = transformer.feeds_backward(b),
                               .shared_first = blocks[b].shared_first,
                               .partial_first = blocks[b].partial_first});
  }
  const model::BlockRange loss = transformer.layout().loss_blocks(config);
  for (std::uint32_t b = loss.first; b < loss.end; ++b) {
    workload.blocks[b].loss_flops = transformer.loss_flops(b);
  }
  workload.operator_tiles = transformer.layout().operator_tile > 0;
  workload.carried_bytes = transformer.carried_bytes();
  workload.tied_head = config.tied_head;
  if (config.tied_head) {
    workload.tied_elements = blocks.front().tensors.front().count;
  }
  workload.compute = options.compute;
  workload.boundary_bytes = transformer.boundary_bytes();
  workload.summed_bytes = transformer.summed_bytes();
  workload.workspace_bytes = transformer.workspace_bytes();
  workload.constant_bytes = transformer.constant_bytes();
  workload.tokens = std::uint64_t{options.micro_batch} * options.context;
  workload.token_bytes = Bytes{2 * workload.tokens * sizeof(std::int32_t)};
  workload.rounds = config::rounds_of(options);
  workload.micro_batches = options.gradient_accumulation_steps / workload.rounds;
  if (options.update == config::UpdateMode::delayed) {
    workload.stale = plan::delayed_updates(workload.rounds);
  }
  return workload;
}

}  // namespace

plan::Workload make_workload(const model::ModelConfig& config,
                             const model::Transformer& transformer,
                             const config::TrainOptions& options, const plan::Replicas& replicas) {
  if (options.tensor.ranks == 1) return workload_of(config, transformer, options, replicas);
  // All ranks of a tensor group have the buffers of the first one, whose parts are the largest, and
  // so one plan. Only temporaries need not be in the order of the parts.
  const auto part = [&](std::uint32_t index) {
    return make_model_sizes(config, options, {.tensor_index = index});
  };
  plan::Workload workload = workload_of(config, *part(0).transformer, options, replicas);
  for (std::uint32_t index = 1; index < options.tensor.ranks; ++index) {
    workload.workspace_bytes =
        std::max(workload.workspace_bytes, part(index).transformer->workspace_bytes());
  }
  // This rank's attention may take more than usual (prepare/score_gradients).
  workload.workspace_bytes = std::max(workload.workspace_bytes, transformer.workspace_bytes());
  workload.tensor = {.count = options.tensor.ranks, .sequence = options.tensor.sequence};
  workload.scan_bytes = Bytes{workload.tokens * sizeof(model::VocabularyScan)};
  return workload;
}

plan::DecoderShape decoder_shape(const model::ModelConfig& config, std::uint32_t context) {
  return {.layers = static_cast<double>(config.layers),
          .width = static_cast<double>(config.width),
          .kv_width = static_cast<double>(config.kv_heads) * config.head_dim,
          .mlp_width = static_cast<double>(config.ffn_width),
          .vocabulary = static_cast<double>(config.vocab_size),
          .sequence = static_cast<double>(context),
          .query_width = static_cast<double>(config.heads) * config.head_dim,
          .mlp_matrices = config.activation == model::Activation::silu ? 3.0 : 2.0};
}

plan::Workload make_workload(const model::ModelConfig& config, const config::TrainOptions& options,
                             const plan::Replicas& replicas) {
  return make_workload(config, *make_model_sizes(config, options).transformer, options, replicas);
}

std::uint64_t most_micro_batches(const model::ModelConfig& config) {
  return kMostPasses / (2 * (std::uint64_t{config.layers} + 2));
}

}  // namespace spillway::engine
