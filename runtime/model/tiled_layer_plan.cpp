// What a tiled layer needs: which tile has which columns of which product, and memory.
#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/model/tiled_layer.hpp"

namespace spillway::model {

TiledLayer::TiledLayer(const ModelConfig& config, BatchShape batch,
                       std::span<const BlockLayout> blocks, const BlockLayout& vectors, Ops& ops)
    : LayerCore(config, batch, vectors, ops) {
  find_products(vectors);
  for (const BlockLayout& block : blocks) cut(block);
  Carver space(ops_->compute());
  carve_space(space);
  workspace_bytes_ = space.used();
  Carver carried(ops_->compute());
  carve_carried(carried);
  carried_bytes_ = carried.used();
}

void TiledLayer::find_products(const BlockLayout& vectors) {
  const std::uint64_t width = config_.width;
  const auto set = [&](Product product, const Whole& whole) {
    products_[static_cast<std::size_t>(product)] = whole;
  };
  set(Product::qkv, {.in = width,
                     .out = qkv_columns(),
                     .bias = find_tensors(vectors, {"q_proj.bias", "k_proj.bias", "v_proj.bias"}),
                     .residual = false});
  set(Product::attention_out, {.in = q_columns(),
                               .out = width,
                               .bias = find_tensors(vectors, {"o_proj.bias"}),
                               .residual = true});
  set(Product::ffn_in, {.in = width,
                        .out = ffn_columns(),
                        .bias = find_tensors(vectors, {"gate_proj.bias", "up_proj.bias"}),
                        .residual = false});
  set(Product::ffn_out, {.in = config_.ffn_width,
                         .out = width,
                         .bias = find_tensors(vectors, {"down_proj.bias"}),
                         .residual = true});
}

/// Parts of one product that follow each other in a block, as k after q, are one part.
void TiledLayer::cut(const BlockLayout& block) {
  struct Place {
    std::string_view suffix;
    Product product;
    std::uint64_t first;  ///< column of the product
  };
  const std::array<Place, 7> places{{
      {"q_proj.weight", Product::qkv, 0},
      {"k_proj.weight", Product::qkv, q_columns()},
      {"v_proj.weight", Product::qkv, q_columns() + kv_columns()},
      {"o_proj.weight", Product::attention_out, 0},
      {"gate_proj.weight", Product::ffn_in, 0},
      {"up_proj.weight", Product::ffn_in, config_.ffn_width},
      {"down_proj.weight", Product::ffn_out, 0},
  }};
  std::vector<Part>& parts = tiles_.emplace_back();
  for (const ParameterTensor& tensor : block.tensors) {
    const auto place = std::ranges::find_if(
        places, [&](const Place& p) { return tensor.name.ends_with(p.suffix); });
    SPILLWAY_ASSERT(place != places.end());
    if (parts.empty() || parts.back().product != place->product) {
      Part& part = parts.emplace_back();
      part.product = place->product;
      part.first = place->first + tensor.skipped.value() / whole(part).in;
      part.weight.first = tensor.first.value();
    }
    parts.back().weight.count += tensor.count.value();
  }
  for (Part& part : parts) prepare(part);
}

void TiledLayer::prepare(Part& part) {
  const Whole& product = whole(part);
  part.columns = part.weight.count / product.in;
  part.forward = ops_->plan_matmul({.rows = tokens(),
                                    .columns = part.columns,
                                    .inner = product.in,
                                    .transpose_b = true,
                                    .bias = product.bias.has_value(),
                                    .residual = product.residual,
                                    .out_stride = product.out});
  part.input_gradient = ops_->plan_matmul({.rows = tokens(),
                                           .columns = product.in,
                                           .inner = part.columns,
                                           .output = MatmulOutput::gradient,
                                           .a_stride = product.out});
  part.weight_gradient = ops_->plan_matmul({.rows = part.columns,
                                            .columns = product.in,
                                            .inner = tokens(),
                                            .transpose_a = true,
                                            .output = MatmulOutput::gradient,
                                            .a_stride = product.out});
  ops_workspace_ =
      std::max({ops_workspace_, part.forward.workspace, part.input_gradient.workspace,
                part.weight_gradient.workspace, ops_->reduction_workspace(tokens(), product.out)});
}

TiledLayer::Space TiledLayer::carve_space(Carver& carver) const {
  Space space;
  space.common = carve_common(carver);
  space.activation = carver.elements(tokens() * config_.ffn_width);
  if (ops_->compute() != DType::fp32) {
    const std::uint64_t widest =
        std::max({std::uint64_t{config_.width}, std::uint64_t{config_.ffn_width}, q_columns()});
    space.rounded = carver.elements(tokens() * widest);
  }
  return space;
}

TiledLayer::Carried TiledLayer::carve_carried(Carver& carver) const {
  Carried carried;
  carried.normal = carver.floats(tokens() * config_.width);
  Carver attention = carver;
  carried.activation = carver.floats(tokens() * config_.ffn_width);
  carried.ffn_gradient = carver.elements(tokens() * ffn_columns());
  carried.attention = attention.floats(tokens() * q_columns());
  carried.qkv_gradient = attention.elements(tokens() * qkv_columns());
  if (attention.used() > carver.used()) carver = attention;
  return carried;
}

double TiledLayer::flops(const Part& part) const {
  return 2.0 * static_cast<double>(tokens()) * static_cast<double>(part.weight.count);
}

double TiledLayer::forward_flops(std::uint32_t tile) const {
  double sum = 0;
  for (const Part& part : tiles_[tile]) {
    sum += flops(part);
    if (part.product == Product::qkv && ends(part)) sum += attention_flops();
  }
  return sum;
}

double TiledLayer::backward_flops(std::uint32_t tile) const {
  double sum = 0;
  for (const Part& part : tiles_[tile]) {
    sum += 2 * flops(part);
    // Five products instead of two.
    if (part.product == Product::attention_out && begins(part)) sum += 2.5 * attention_flops();
  }
  return sum;
}

bool TiledLayer::feeds_backward(std::uint32_t tile) const {
  return tiles_[tile].front().product != Product::ffn_out;
}

}  // namespace spillway::model
