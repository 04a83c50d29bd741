#include "runtime/engine/prepare/workload.hpp"

#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/engine/device/model_runtime.hpp"
#include "runtime/model/row_ops.hpp"

namespace spillway::engine {

namespace {

plan::Workload workload_of(const model::ModelConfig& config, const model::Transformer& transformer,
                           const config::TrainOptions& options, const plan::Ranks& ranks) {
  plan::Workload workload;
  workload.ranks = ranks;
  const auto& blocks = transformer.layout().blocks;
  for (std::uint32_t b = 0; b < blocks.size(); ++b) {
    workload.blocks.push_back({.name = blocks[b].name,
                               .parameters = blocks[b].parameters,
                               .padded_parameters = plan::pad(blocks[b].parameters, ranks.count),
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
  workload.tiled = transformer.layout().operator_tile > 0;
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
  const bool by_one = options.sum_order == config::SumOrder::fixed || options.pipeline.stages > 1;
  workload.rounds = by_one ? options.gradient_accumulation_steps : options.rounds;
  workload.micro_batches = options.gradient_accumulation_steps / workload.rounds;
  return workload;
}

}  // namespace

plan::Workload make_workload(const model::ModelConfig& config,
                             const model::Transformer& transformer,
                             const config::TrainOptions& options, const plan::Ranks& ranks) {
  if (options.tensor.ranks == 1) return workload_of(config, transformer, options, ranks);
  // All ranks of a tensor group have the buffers of the first one, whose parts are the largest, and
  // so one plan. Only temporaries need not be in the order of the parts.
  config::TrainOptions each = options;
  each.tensor.index = 0;
  plan::Workload workload =
      workload_of(config, *make_model_sizes(config, each).transformer, options, ranks);
  for (std::uint32_t index = 1; index < options.tensor.ranks; ++index) {
    each.tensor.index = index;
    workload.workspace_bytes = std::max(
        workload.workspace_bytes, make_model_sizes(config, each).transformer->workspace_bytes());
  }
  // This rank's attention may take more than usual (prepare/score_gradients).
  workload.workspace_bytes = std::max(workload.workspace_bytes, transformer.workspace_bytes());
  workload.tensor = {.count = options.tensor.ranks,
                     .index = options.tensor.index,
                     .sequence = options.tensor.sequence};
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

namespace {

std::optional<plan::Tier> tier_of(config::StateHome home) {
  switch (home) {
    case config::StateHome::automatic: break;
    case config::StateHome::device: return plan::Tier::device;
    case config::StateHome::host: return plan::Tier::host;
    case config::StateHome::nvme: return plan::Tier::nvme;
  }
  return std::nullopt;
}

}  // namespace

plan::PlacementRequest placement_request(const config::TrainOptions& options) {
  plan::PlacementRequest request;
  request.state = tier_of(options.state_home);
  request.activations = tier_of(options.activations);
  // A step of a pipeline that stays full leaves boundaries to the next one.
  if (has_stale_weights(options.pipeline.schedule)) request.activations = plan::Tier::device;
  if (options.residency != config::Residency::automatic) {
    request.resident = options.residency == config::Residency::all;
  }
  if (options.checkpointing != config::Checkpointing::automatic) {
    request.keep = options.checkpointing != config::Checkpointing::recompute;
    request.offload = config::offloads(options.checkpointing);
    const bool on_disk = options.checkpointing == config::Checkpointing::nvme;
    request.offload_to = on_disk ? plan::Tier::nvme : plan::Tier::host;
  }
  if (options.gradient_sums != config::SumsHome::automatic) {
    request.sums = options.gradient_sums == config::SumsHome::device;
  }
  request.order = options.work_order;
  request.format = options.state_format;
  request.tile_parameters = ElementCount{options.tile_parameters};
  request.prefetch = options.prefetch;
  request.commits = options.commits;
  return request;
}

}  // namespace spillway::engine
