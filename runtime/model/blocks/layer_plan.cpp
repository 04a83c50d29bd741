// What a layer has: its tensors, its parts' columns of the four gemms, prepared operations, memory.
#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/model/blocks/layer.hpp"

namespace spillway::model::blocks {

Layer::Layer(const ModelConfig& config, BatchShape batch, const LayerParts& layer, Ops& ops)
    : config_(config_of_part(config, layer.part)),
      batch_(batch),
      ops_(&ops),
      cut_(layer.cut),
      splits_qkv_(layer.part.cuts() && heads_of(config, layer.part).shares_keys),
      part_(layer.part) {
  find_norms(layer.vectors);
  activation_ = {.kind = config_.activation, .rows = tokens(), .columns = config_.ffn_width};
  plan_attention();
  find_gemms(layer.vectors);
  for (const BlockLayout& block : layer.blocks) add_part(block);
  measure();
}

std::uint64_t Layer::tokens() const { return std::uint64_t{batch_.batch} * batch_.sequence; }
std::uint64_t Layer::q_columns() const { return std::uint64_t{config_.heads} * config_.head_dim; }
std::uint64_t Layer::kv_columns() const {
  return std::uint64_t{config_.kv_heads} * config_.head_dim;
}
std::uint64_t Layer::ffn_columns() const {
  return config_.ffn_width * (config_.activation == Activation::silu ? 2ULL : 1ULL);
}

void Layer::find_norms(const BlockLayout& vectors) {
  const bool gpt2 = config_.is_gpt2();
  const auto norm = [&](std::string_view weight, std::string_view bias) {
    return Norm{.shape = {.kind = gpt2 ? NormKind::layer : NormKind::rms,
                          .tokens = norm_tokens(),
                          .heads = 1,
                          .width = config_.width,
                          .eps = static_cast<float>(config_.norm_eps)},
                .weight = require_tensors(vectors, {weight}),
                .bias = gpt2 ? find_tensors(vectors, {bias}) : std::nullopt};
  };
  attention_norm_ = gpt2 ? norm("ln_1.weight", "ln_1.bias") : norm("input_layernorm.weight", "");
  ffn_norm_ = gpt2 ? norm("ln_2.weight", "ln_2.bias") : norm("post_attention_layernorm.weight", "");
  const auto head_norm = [&](std::string_view weight, std::uint32_t heads) -> std::optional<Norm> {
    const auto range = find_tensors(vectors, {weight});
    if (!range) return std::nullopt;
    Norm result{.shape = attention_norm_.shape, .weight = *range, .bias = std::nullopt};
    result.shape.tokens = tokens();
    result.shape.heads = heads;
    result.shape.width = config_.head_dim;
    return result;
  };
  q_norm_ = head_norm("q_norm.weight", config_.heads);
  k_norm_ = head_norm("k_norm.weight", config_.kv_heads);
}

void Layer::plan_attention() {
  // Normalized heads lie in a matrix of their own; the others where they were projected.
  const std::uint64_t all = qkv_columns();
  const std::uint64_t normalized = q_norm_ ? q_columns() + kv_columns() : all;
  attention_ = ops_->plan_attention({.batch = batch_.batch,
                                     .sequence = batch_.sequence,
                                     .heads = config_.heads,
                                     .kv_heads = config_.kv_heads,
                                     .head_dim = config_.head_dim,
                                     .strides = {.q = normalized,
                                                 .k = normalized,
                                                 .v = all,
                                                 .out = q_columns(),
                                                 .q_gradient = all,
                                                 .k_gradient = all,
                                                 .v_gradient = all}});
  const std::uint64_t norm_columns = 2 * std::max(config_.width, config_.head_dim);
  ops_workspace_ =
      std::max(attention_.workspace, ops_->reduction_workspace(tokens(), norm_columns));
}

void Layer::find_gemms(const BlockLayout& vectors) {
  const std::uint64_t width = config_.width;
  const std::uint64_t ffn = config_.ffn_width;
  const auto set = [&](Gemm gemm, std::uint64_t in, std::uint64_t out, bool residual,
                       std::string_view gpt2_bias,
                       std::initializer_list<std::string_view> llama_biases) {
    const auto bias =
        config_.is_gpt2() ? find_used(vectors, {gpt2_bias}) : find_used(vectors, llama_biases);
    std::uint64_t columns = 0;
    for (const TensorRange& range : bias) columns += range.count;
    SPILLWAY_ASSERT(bias.empty() || columns == out);
    gemms_[static_cast<std::size_t>(gemm)] = {in, out, bias, residual};
  };
  set(Gemm::qkv, width, qkv_columns(), false, "attn.c_attn.bias",
      {"q_proj.bias", "k_proj.bias", "v_proj.bias"});
  set(Gemm::attention_out, q_columns(), width, true, "attn.c_proj.bias", {"o_proj.bias"});
  set(Gemm::ffn_in, width, ffn_columns(), false, "mlp.c_fc.bias",
      {"gate_proj.bias", "up_proj.bias"});
  set(Gemm::ffn_out, ffn, width, true, "mlp.c_proj.bias", {"down_proj.bias"});
}

std::optional<TensorRange> Layer::bias_of(const WholeGemm& gemm, std::uint64_t first,
                                          std::uint64_t columns) const {
  std::uint64_t passed = 0;
  for (const TensorRange& range : gemm.bias) {
    const std::uint64_t end = passed + range.count;
    if (first < end) {
      SPILLWAY_ASSERT(first + columns <= end);
      return TensorRange{range.first + (first - passed), columns};
    }
    passed = end;
  }
  SPILLWAY_ASSERT(gemm.bias.empty());
  return std::nullopt;
}

/// Matrices of one gemm that follow each other in a block, as k after q, are multiplied as one.
void Layer::add_part(const BlockLayout& block) {
  struct Place {
    std::string_view suffix;
    Gemm gemm;
    std::uint64_t first;  ///< column of the gemm
  };
  const std::array<Place, 11> places{{
      {"q_proj.weight", Gemm::qkv, 0},
      {"k_proj.weight", Gemm::qkv, q_columns()},
      {"v_proj.weight", Gemm::qkv, q_columns() + kv_columns()},
      {"o_proj.weight", Gemm::attention_out, 0},
      {"gate_proj.weight", Gemm::ffn_in, 0},
      {"up_proj.weight", Gemm::ffn_in, config_.ffn_width},
      {"down_proj.weight", Gemm::ffn_out, 0},
      {"attn.c_attn.weight", Gemm::qkv, 0},
      {"attn.c_proj.weight", Gemm::attention_out, 0},
      {"mlp.c_fc.weight", Gemm::ffn_in, 0},
      {"mlp.c_proj.weight", Gemm::ffn_out, 0},
  }};
  struct Range {
    Gemm gemm;
    std::uint64_t first;
    TensorRange weight;
  };
  std::vector<Range> ranges;
  for (const ParameterTensor& tensor : block.tensors) {
    if (tensor.is_vector) continue;
    const auto place = std::ranges::find_if(
        places, [&](const Place& p) { return tensor.name.ends_with(p.suffix); });
    SPILLWAY_ASSERT(place != places.end());
    const auto [first, count] = tensor.used_in_block();
    const bool follows = !ranges.empty() && ranges.back().gemm == place->gemm &&
                         ranges.back().weight.first + ranges.back().weight.count == first;
    if (!follows) {
      // A part of a tensor group has its own columns alone.
      const std::uint64_t skipped = halved() ? 0 : tensor.skipped.value() / shape(place->gemm).in;
      ranges.push_back({place->gemm, place->first + skipped, {first, 0}});
    }
    ranges.back().weight.count += count;
  }
  // What all ranks of a group have, as shared keys and values, lies behind a rank's own.
  std::ranges::sort(ranges, {}, [](const Range& r) { return std::pair(r.gemm, r.first); });
  std::vector<Columns>& part = parts_.emplace_back();
  for (const Range& r : ranges) part.push_back(make_columns(r.gemm, r.first, r.weight));
}

Layer::Columns Layer::make_columns(Gemm which, std::uint64_t first, TensorRange weight) const {
  const WholeGemm& gemm = shape(which);
  LinearShape linear{.rows = tokens(),
                     .in = gemm.in,
                     .columns = weight.count / gemm.in,
                     .layout = config_.is_gpt2() ? WeightLayout::in_out : WeightLayout::out_in,
                     .weight = weight,
                     .bias = {},
                     .residual = gemm.residual};
  // What is added once to a sum over ranks, the first of them adds, or each to its own tokens.
  const bool adds = !gemm.residual || part_.sequence || part_.index == 0;
  linear.residual = gemm.residual && adds;
  if (gemm.residual && part_.sequence) {
    linear.slices = part_.count;
    linear.own_slice = part_.index;
  }
  SPILLWAY_ASSERT(weight.count == gemm.in * linear.columns && first + linear.columns <= gemm.out);
  if (adds) linear.bias = bias_of(gemm, first, linear.columns);
  if (cut_ || (splits_qkv_ && which == Gemm::qkv)) {
    linear.stride = gemm.out;
    linear.input_gradient = GemmOutput::gradient;
  }
  return {which, first, Linear(linear, *ops_)};
}

Layer::Saved Layer::allocate_saved(BumpAllocator& allocator, std::uint32_t part) const {
  Saved saved;
  if (!halved() || part == 0) {
    saved.qkv = allocator.elements(tokens() * qkv_columns());
    saved.attention = allocator.elements(tokens() * q_columns());
    saved.log_sum = allocator.floats(tokens() * config_.heads);
  }
  if (!halved()) saved.middle = allocator.elements(tokens() * config_.width);
  if (!halved() || part == 1) saved.ffn = allocator.elements(tokens() * ffn_columns());
  return saved;
}

Bytes Layer::saved_bytes(std::uint32_t part) const {
  BumpAllocator saved(ops_->compute());
  allocate_saved(saved, part);
  return saved.used();
}

Layer::Space Layer::allocate_space(BumpAllocator& allocator) const {
  const bool normalizes = q_norm_.has_value();
  return {.normal = allocator.elements(tokens() * config_.width),
          .statistics = allocator.floats(tokens() * 2 * (normalizes ? config_.heads : 1)),
          .k_statistics = allocator.floats(normalizes ? tokens() * 2 * config_.kv_heads : 0),
          .heads = allocator.elements(normalizes ? tokens() * (q_columns() + kv_columns()) : 0),
          .ops = allocator.bytes(ops_workspace_.value()),
          .activation = {},
          .rounded = {}};
}

Layer::Gradients Layer::allocate_gradients(BumpAllocator& workspace, BumpAllocator& given,
                                           Space& space) const {
  BumpAllocator& carried = cut_ ? given : workspace;
  const auto sums = [&](BumpAllocator& allocator, std::uint64_t columns) -> Tensor {
    const std::uint64_t count = tokens() * columns;
    return cut_ ? allocator.floats(count).as<std::byte>() : allocator.elements(count);
  };
  Gradients g;
  g.normal = sums(halved() ? given : carried, config_.width);
  if (splits_qkv_ && ops_->compute() != DType::fp32) {
    g.sums = workspace.floats(tokens() * config_.width).as<std::byte>();
  }
  BumpAllocator attention = carried;
  space.activation = workspace.elements(tokens() * config_.ffn_width);
  g.ffn = carried.elements(tokens() * ffn_columns());
  // gelu's gradient replaces the gradient of its result; the gated one has twice the columns.
  const bool shared = !cut_ && config_.activation != Activation::silu;
  g.activation = shared ? g.ffn : sums(carried, config_.ffn_width);
  g.attention = sums(attention, q_columns());
  g.qkv = attention.elements(tokens() * qkv_columns());
  if (attention.used() > carried.used()) carried = attention;
  if (cut_ && ops_->compute() != DType::fp32) {
    const std::uint64_t widest =
        std::max({std::uint64_t{config_.width}, std::uint64_t{config_.ffn_width}, q_columns()});
    space.rounded = workspace.elements(tokens() * widest);
  }
  return g;
}

void Layer::measure() {
  for (const std::vector<Columns>& part : parts_) {
    for (const Columns& columns : part) {
      ops_workspace_ = std::max(ops_workspace_, columns.linear.workspace());
    }
  }
  for (const WholeGemm& gemm : gemms_) {
    if (gemm.bias.empty()) continue;
    ops_workspace_ = std::max(ops_workspace_, ops_->reduction_workspace(tokens(), gemm.out));
  }
  BumpAllocator forward(ops_->compute());
  allocate_space(forward);
  forward.elements(tokens() * config_.ffn_width);
  Bytes saved;  // where the caller keeps nothing
  for (std::uint32_t part = 0; part < parts_.size(); ++part) {
    if (!cut_) saved = std::max(saved, saved_bytes(part));
  }
  forward.bytes(saved.value());
  BumpAllocator backward(ops_->compute());
  BumpAllocator carried(ops_->compute());
  Space space = allocate_space(backward);
  allocate_gradients(backward, carried, space);
  workspace_bytes_ = std::max(forward.used(), backward.used());
  carried_bytes_ = carried.used();
}

double Layer::attention_flops() const {
  // Attention is causal: position p sees p + 1 keys; two gemms of head_dim multiply-adds for each.
  const double sequence = batch_.sequence;
  const double pairs = static_cast<double>(batch_.batch) * sequence * (sequence + 1) / 2;
  return 4.0 * pairs * static_cast<double>(q_columns());
}

double Layer::forward_flops(std::uint32_t index) const {
  double sum = 0;
  for (const Columns& part : parts_[index]) {
    sum += part.linear.flops();
    if (part.gemm == Gemm::qkv && ends(part)) sum += attention_flops();
  }
  return sum;
}

double Layer::backward_flops(std::uint32_t index) const {
  double sum = 0;
  for (const Columns& part : parts_[index]) {
    sum += 2 * part.linear.flops();
    // Backward has five gemms instead of two.
    if (part.gemm == Gemm::attention_out && begins(part)) sum += 2.5 * attention_flops();
  }
  return sum;
}

bool Layer::feeds_backward(std::uint32_t part) const {
  return parts_[part].front().gemm != Gemm::ffn_out;
}

}  // namespace spillway::model::blocks
