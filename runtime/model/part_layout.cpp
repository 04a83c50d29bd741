// The layout of one part of a model that a tensor group shares out.
#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/model/parameter_layout.hpp"

namespace spillway::model {
namespace {

/// What of a tensor a rank has.
enum class Share : std::uint8_t {
  rows,     ///< some rows of a matrix, or elements of a vector
  columns,  ///< some columns of every row, or several ranges of a vector's elements
  all,      ///< all of it, as every rank; its gradient is the same on all of them
  norm,     ///< the same of a norm between blocks, unless each rank runs it on its own tokens
  summed,   ///< all of it, as every rank; each has a part of its gradient, of `ranges` if any
};

struct Piece {
  Share share = Share::all;
  std::vector<ColumnRange> ranges{};  ///< of rows, and of what is summed: one at most
};

ColumnRange range_of(const PartRange& part, std::uint64_t each, std::uint64_t first = 0) {
  return {first + part.first * each, part.size() * each};
}

/// What a rank has of each tensor of a layer, of the embedding and of the head.
class Cutter {
 public:
  Cutter(const ModelConfig& config, const TensorPart& part)
      : config_(config),
        heads_(heads_of(config, part)),
        mlp_(part.of(config.ffn_width)),
        vocabulary_(part.of(config.vocab_size)) {}

  [[nodiscard]] Piece piece_of(const ParameterTensor& tensor) const {
    const auto is = [&](std::string_view suffix) { return tensor.name.ends_with(suffix); };
    const std::uint64_t each = config_.head_dim;
    if (is("q_proj.weight") || is("q_proj.bias")) return rows(range_of(heads_.queries, each));
    if (is("k_proj.weight") || is("k_proj.bias") || is("v_proj.weight") || is("v_proj.bias")) {
      Piece piece = rows(range_of(heads_.keys, each));
      if (heads_.shares_keys) piece.share = Share::summed;
      return piece;
    }
    if (is("o_proj.weight")) return columns({range_of(heads_.queries, each)});
    if (is("gate_proj.weight") || is("up_proj.weight") || is("gate_proj.bias") ||
        is("up_proj.bias") || is("mlp.c_proj.weight")) {
      return rows(range_of(mlp_, 1));
    }
    if (is("down_proj.weight") || is("c_fc.weight")) return columns({range_of(mlp_, 1)});
    if (is("c_fc.bias")) return rows(range_of(mlp_, 1));
    if (is("c_attn.weight") || is("c_attn.bias")) {
      const std::uint64_t all = config_.heads * each;
      return columns({range_of(heads_.queries, each), range_of(heads_.queries, each, all),
                      range_of(heads_.queries, each, 2 * all)});
    }
    if (is("attn.c_proj.weight")) return rows(range_of(heads_.queries, each));
    if (is("wte.weight") || is("embed_tokens.weight") || is("lm_head.weight")) {
      return rows(range_of(vocabulary_, 1));
    }
    if (is("q_norm.weight") || is("k_norm.weight")) return {.share = Share::summed};
    const bool of_norm = is("norm.weight") || is("layernorm.weight") || is("ln_1.weight") ||
                         is("ln_1.bias") || is("ln_2.weight") || is("ln_2.bias") ||
                         is("ln_f.weight") || is("ln_f.bias");
    return {.share = of_norm ? Share::norm : Share::all};
  }

 private:
  static Piece rows(ColumnRange range) { return {.share = Share::rows, .ranges = {range}}; }
  static Piece columns(std::vector<ColumnRange> ranges) {
    return {.share = Share::columns, .ranges = std::move(ranges)};
  }

  const ModelConfig& config_;
  HeadShare heads_;
  PartRange mlp_, vocabulary_;
};

ParameterTensor cut(ParameterTensor tensor, const Piece& piece) {
  const std::uint64_t row = tensor.is_vector ? 1 : tensor.shape.back();
  if (piece.share == Share::rows) {
    tensor.skipped = ElementCount{piece.ranges.front().first * row};
    tensor.count = ElementCount{piece.ranges.front().count * row};
  } else if (piece.share == Share::columns) {
    std::uint64_t width = 0;
    for (const ColumnRange& range : piece.ranges) width += range.count;
    const std::uint64_t rows = tensor.is_vector ? 1 : tensor.shape.front();
    tensor.count = ElementCount{rows * width};
    tensor.columns = piece.ranges;
  } else if (!piece.ranges.empty()) {
    tensor.used = {piece.ranges.front().first * row, piece.ranges.front().count * row};
  }
  return tensor;
}

bool is_own(Share share) { return share == Share::rows || share == Share::columns; }

ElementCount own_elements(const Cutter& cutter, const std::vector<ParameterTensor>& tensors) {
  ElementCount count;
  for (const ParameterTensor& tensor : tensors) {
    const Piece piece = cutter.piece_of(tensor);
    if (is_own(piece.share)) count += cut(tensor, piece).count;
  }
  return count;
}

/// Appends to one block: what the rank has alone, then what all ranks have, then of this what has
/// gradients that add up. What all have begins where it does in the first part, the largest.
BlockLayout block_of(std::string name, std::uint32_t layer, const Cutter& cutter,
                     const Cutter& of_first, const TensorPart& part,
                     const std::vector<ParameterTensor>& tensors) {
  BlockLayout block;
  block.name = std::move(name);
  block.layer = layer;
  const auto append = [&](auto wanted) {
    for (const ParameterTensor& tensor : tensors) {
      const Piece piece = cutter.piece_of(tensor);
      if (!wanted(piece.share)) continue;
      ParameterTensor own = cut(tensor, piece);
      own.first = block.parameters;
      block.parameters += own.count;
      block.tensors.push_back(std::move(own));
    }
  };
  append(is_own);
  block.shared_first = block.parameters =
      ElementCount{round_up(own_elements(of_first, tensors).value(), kLeafParameters)};
  append([](Share share) { return share == Share::all; });
  const ElementCount norms = block.parameters;
  append([](Share share) { return share == Share::norm; });
  block.partial_first = part.sequence ? norms : block.parameters;
  append([](Share share) { return share == Share::summed; });
  block.padded_parameters = ElementCount{round_up(block.parameters.value(), kLeafParameters)};
  return block;
}

bool is_of_mlp(const ParameterTensor& tensor) {
  const auto has = [&](std::string_view part) {
    return tensor.name.find(part) != std::string::npos;
  };
  return has(".mlp.") || has(".ln_2.") || has(".post_attention_layernorm.");
}

}  // namespace

ModelLayout make_layout(const ModelConfig& config, const TensorPart& part) {
  if (!part.cuts()) return make_layout(config);
  const ModelLayout whole = make_layout(config);
  static_cast<void>(config_of_part(config, part));  // throws for what cannot be shared out
  const Cutter cutter(config, part);
  const Cutter first(config, {.index = 0, .count = part.count});
  ModelLayout layout;
  layout.part = part;
  const auto add = [&](std::string name, const std::vector<ParameterTensor>& tensors) {
    const auto layer = static_cast<std::uint32_t>(layout.blocks.size());
    layout.blocks.push_back(block_of(std::move(name), layer, cutter, first, part, tensors));
  };
  add(whole.blocks.front().name, whole.blocks.front().tensors);
  for (std::size_t b = 1; b + 1 < whole.blocks.size(); ++b) {
    std::vector<ParameterTensor> attention, mlp;
    for (const ParameterTensor& tensor : whole.blocks[b].tensors) {
      (is_of_mlp(tensor) ? mlp : attention).push_back(tensor);
    }
    add(fmt::format("{}.attention", whole.blocks[b].name), attention);
    add(fmt::format("{}.mlp", whole.blocks[b].name), mlp);
  }
  add(whole.blocks.back().name, whole.blocks.back().tensors);
  return layout;
}

}  // namespace spillway::model
