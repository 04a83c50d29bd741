#include "runtime/engine/prepare/workload.hpp"

#include "runtime/base/error.hpp"

namespace spillway::engine {

plan::Workload make_workload(const model::ModelConfig& config,
                             const model::Transformer& transformer,
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
                               .feeds_backward = transformer.feeds_backward(b)});
  }
  const model::BlockRange loss = transformer.layout().loss_blocks(config);
  for (std::uint32_t b = loss.first; b < loss.end; ++b) {
    workload.blocks[b].loss_flops = transformer.loss_flops(b);
  }
  workload.tiled = transformer.layout().operator_tile > 0;
  workload.carried_bytes = transformer.carried_bytes();
  workload.tied_head = config.tied_head;
  if (config.tied_head) {
    workload.tied_elements = ElementCount{std::uint64_t{config.vocab_size} * config.width};
  }
  workload.compute = options.compute;
  workload.boundary_bytes = transformer.boundary_bytes();
  workload.workspace_bytes = transformer.workspace_bytes();
  workload.constant_bytes = transformer.constant_bytes();
  workload.tokens = std::uint64_t{options.micro_batch} * options.context;
  workload.token_bytes = Bytes{2 * workload.tokens * sizeof(std::int32_t)};
  const bool by_one = options.sum_order == config::SumOrder::fixed || options.pipeline.stages > 1;
  workload.rounds = by_one ? options.gradient_accumulation_steps : options.rounds;
  workload.micro_batches = options.gradient_accumulation_steps / workload.rounds;
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

std::vector<BlockGroups> decay_groups(const model::ModelLayout& layout,
                                      const plan::Workload& workload, config::DecayScope scope) {
  std::vector<BlockGroups> groups;
  for (const model::BlockLayout& block : layout.blocks) {
    std::uint64_t end = 0;
    bool vectors = false;
    for (const model::ParameterTensor& tensor : block.tensors) {
      // The layout promises matrices first; a decayed range is then one prefix of the block.
      SPILLWAY_ASSERT(!vectors || tensor.is_vector);
      vectors = tensor.is_vector;
      if (!vectors) end = tensor.first.value() + tensor.count.value();
    }
    // Many ranks have longer padding than the layout.
    const std::uint64_t padded = workload.blocks[groups.size()].padded_parameters.value();
    if (scope == config::DecayScope::all) end = padded;
    groups.push_back({{{.end = end, .group = kDecayed}, {.end = padded, .group = kPlain}}});
  }
  return groups;
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
  if (options.pipeline.stages > 1) request.activations = plan::Tier::device;
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
  request.order = options.work_order == config::WorkOrder::layer_major
                      ? plan::WorkOrder::layer_major
                      : plan::WorkOrder::micro_batch_major;
  request.format = options.state_format;
  request.tile_parameters = ElementCount{options.tile_parameters};
  request.prefetch = options.prefetch;
  request.commits = options.commits;
  return request;
}

}  // namespace spillway::engine
