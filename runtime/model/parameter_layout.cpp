#include "runtime/model/parameter_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/model/cut_layout.hpp"

namespace spillway::model {
namespace {

/// Appends tensors to one block; the caller gives matrices before vectors.
class BlockBuilder {
 public:
  explicit BlockBuilder(std::string name) { block_.name = std::move(name); }

  void matrix(std::string name, std::uint64_t rows, std::uint64_t columns,
              Initial initial = Initial::normal) {
    add({.name = std::move(name),
         .shape = {rows, columns},
         .first = block_.parameters,
         .count = ElementCount{rows * columns},
         .initial = initial,
         .is_vector = false});
  }

  void vector(std::string name, std::uint64_t size, Initial initial) {
    add({.name = std::move(name),
         .shape = {size},
         .first = block_.parameters,
         .count = ElementCount{size},
         .initial = initial,
         .is_vector = true});
  }

  BlockLayout finish() {
    block_.padded_parameters = ElementCount{round_up(block_.parameters.value(), kLeafParameters)};
    return std::move(block_);
  }

 private:
  void add(ParameterTensor tensor) {
    block_.parameters += tensor.count;
    block_.tensors.push_back(std::move(tensor));
  }

  BlockLayout block_;
};

BlockLayout gpt2_layer(const ModelConfig& config, std::uint32_t layer) {
  const std::string prefix = fmt::format("transformer.h.{}.", layer);
  const std::uint64_t width = config.width;
  const std::uint64_t ffn = config.ffn_width;
  BlockBuilder block(fmt::format("layer.{}", layer));
  // Conv1D: [in, out], the transpose of a Linear; q, k and v are fused along the columns.
  block.matrix(prefix + "attn.c_attn.weight", width, 3 * width);
  block.matrix(prefix + "attn.c_proj.weight", width, width, Initial::scaled_normal);
  block.matrix(prefix + "mlp.c_fc.weight", width, ffn);
  block.matrix(prefix + "mlp.c_proj.weight", ffn, width, Initial::scaled_normal);
  block.vector(prefix + "ln_1.weight", width, Initial::ones);
  block.vector(prefix + "ln_1.bias", width, Initial::zeros);
  block.vector(prefix + "attn.c_attn.bias", 3 * width, Initial::zeros);
  block.vector(prefix + "attn.c_proj.bias", width, Initial::zeros);
  block.vector(prefix + "ln_2.weight", width, Initial::ones);
  block.vector(prefix + "ln_2.bias", width, Initial::zeros);
  block.vector(prefix + "mlp.c_fc.bias", ffn, Initial::zeros);
  block.vector(prefix + "mlp.c_proj.bias", width, Initial::zeros);
  return block.finish();
}

BlockLayout llama_layer(const ModelConfig& config, std::uint32_t layer) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const std::uint64_t width = config.width;
  const std::uint64_t ffn = config.ffn_width;
  const std::uint64_t queries = std::uint64_t{config.heads} * config.head_dim;
  const std::uint64_t keys = std::uint64_t{config.kv_heads} * config.head_dim;
  BlockBuilder block(fmt::format("layer.{}", layer));
  block.matrix(prefix + "self_attn.q_proj.weight", queries, width);
  block.matrix(prefix + "self_attn.k_proj.weight", keys, width);
  block.matrix(prefix + "self_attn.v_proj.weight", keys, width);
  block.matrix(prefix + "self_attn.o_proj.weight", width, queries);
  block.matrix(prefix + "mlp.gate_proj.weight", ffn, width);
  block.matrix(prefix + "mlp.up_proj.weight", ffn, width);
  block.matrix(prefix + "mlp.down_proj.weight", width, ffn);
  block.vector(prefix + "input_layernorm.weight", width, Initial::ones);
  if (config.qkv_bias) {
    block.vector(prefix + "self_attn.q_proj.bias", queries, Initial::zeros);
    block.vector(prefix + "self_attn.k_proj.bias", keys, Initial::zeros);
    block.vector(prefix + "self_attn.v_proj.bias", keys, Initial::zeros);
  }
  if (config.attention_output_bias) {
    block.vector(prefix + "self_attn.o_proj.bias", width, Initial::zeros);
  }
  if (config.qk_norm) {
    block.vector(prefix + "self_attn.q_norm.weight", config.head_dim, Initial::ones);
    block.vector(prefix + "self_attn.k_norm.weight", config.head_dim, Initial::ones);
  }
  block.vector(prefix + "post_attention_layernorm.weight", width, Initial::ones);
  if (config.mlp_bias) {
    block.vector(prefix + "mlp.gate_proj.bias", ffn, Initial::zeros);
    block.vector(prefix + "mlp.up_proj.bias", ffn, Initial::zeros);
    block.vector(prefix + "mlp.down_proj.bias", width, Initial::zeros);
  }
  return block.finish();
}

BlockLayout embedding(const ModelConfig& config) {
  BlockBuilder block("embedding");
  if (config.is_gpt2()) {
    block.matrix("transformer.wte.weight", config.vocab_size, config.width);
    block.matrix("transformer.wpe.weight", config.max_context, config.width);
  } else {
    block.matrix("model.embed_tokens.weight", config.vocab_size, config.width);
  }
  return block.finish();
}

BlockLayout head(const ModelConfig& config) {
  BlockBuilder block("head");
  if (!config.tied_head) block.matrix("lm_head.weight", config.vocab_size, config.width);
  if (config.is_gpt2()) {
    block.vector("transformer.ln_f.weight", config.width, Initial::ones);
    block.vector("transformer.ln_f.bias", config.width, Initial::zeros);
  } else {
    block.vector("model.norm.weight", config.width, Initial::ones);
  }
  return block.finish();
}

}  // namespace

ElementCount ModelLayout::parameters() const {
  ElementCount total;
  for (const BlockLayout& block : blocks) total += block.parameters;
  return total;
}

BlockRange ModelLayout::blocks_of(std::uint32_t layer) const {
  const std::uint32_t shared = operator_tile > 0 ? 1 : 0;
  const auto found = std::ranges::equal_range(blocks.begin() + shared, blocks.end(), layer, {},
                                              &BlockLayout::layer);
  return {static_cast<std::uint32_t>(found.begin() - blocks.begin()),
          static_cast<std::uint32_t>(found.end() - blocks.begin())};
}

BlockRange ModelLayout::loss_blocks(const ModelConfig& config) const {
  return blocks_of(operator_tile > 0 && config.tied_head ? 0 : head_layer(config));
}

ElementCount ParameterTensor::elements() const {
  std::uint64_t product = 1;
  for (const std::uint64_t extent : shape) product *= extent;
  return ElementCount{product};
}

ModelLayout make_layout(const ModelConfig& config, std::uint64_t operator_tile) {
  validate(config);
  ModelLayout layout;
  layout.blocks.reserve(config.layers + 2);
  layout.blocks.push_back(embedding(config));
  for (std::uint32_t layer = 0; layer < config.layers; ++layer) {
    layout.blocks.push_back(config.is_gpt2() ? gpt2_layer(config, layer)
                                             : llama_layer(config, layer));
  }
  layout.blocks.push_back(head(config));
  std::uint32_t number = 0;
  for (std::uint32_t b = 0; b < layout.blocks.size(); ++b) {
    layout.blocks[b].layer = b;
    for (ParameterTensor& tensor : layout.blocks[b].tensors) tensor.number = number++;
  }
  return operator_tile == 0 ? layout : detail::cut_layout(config, layout, operator_tile);
}

}  // namespace spillway::model
