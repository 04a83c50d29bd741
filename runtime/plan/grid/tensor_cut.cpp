#include "runtime/plan/grid/tensor_cut.hpp"

namespace spillway::plan {
namespace {

constexpr std::array<std::string_view, 5> kNames{"1-D", "1-D sequence", "2-D", "2.5-D", "3-D"};

// An all-reduce of a ring is a reduce-scatter and an all-gather; each sends (t - 1) / t of what all
// ranks have together.
//
// Megatron-LM: forward of a product by rows ends with an all-reduce of its output, and backward of
// one by columns with one of its input's gradient (section 3, "f" and "g").
SentElements sent_by_columns(double ranks, const Product& p) {
  const double share = (ranks - 1) / ranks;
  if (p.by_rows) return {2 * share * p.tokens * p.outputs, 0};
  return {0, 2 * share * p.tokens * p.inputs};
}

// Korthikanti et al., section 4.2.2: each all-reduce becomes an all-gather before a product by
// columns and a reduce-scatter after one by rows, and the reverse in backward. Backward gathers the
// input of a product by columns again, for the gradient of the matrix.
SentElements sent_by_sequence(double ranks, const Product& p) {
  const double share = (ranks - 1) / ranks;
  if (p.by_rows) return {share * p.tokens * p.outputs, share * p.tokens * p.outputs};
  return {share * p.tokens * p.inputs, 2 * share * p.tokens * p.inputs};
}

// SUMMA has q steps. In each, one column of ranks broadcasts its part of the input along the rows,
// and one row its part of the matrix along the columns: q - 1 of q parts come from others. Both
// gradients are products of the same kind, of which one operand is broadcast and the result is
// reduced (Optimus, section 3.1, algorithms 1 to 3). In 2.5-D, the input has d times as many rows,
// and the d copies of the matrix add up their gradients (Tesseract, section 3.1).
SentElements sent_by_summa(double side, double depth, const Product& p) {
  const double input = p.tokens * p.inputs / (side * side * depth);
  const double matrix = p.inputs * p.outputs / (side * side);
  const double one = (side - 1) * (input + matrix);
  return {one, 2 * one + 2 * (depth - 1) / depth * matrix};
}

// Each rank has one of q^3 parts of input, matrix and output. Forward gathers input and matrix, q
// parts each, and reduce-scatters the output (Bian et al., section 3.1). Backward gathers the
// output's gradient, input and matrix, and reduce-scatters the gradients of these two.
SentElements sent_by_cube(double side, const Product& p) {
  const double others = (side - 1) / (side * side * side);
  const double input = p.tokens * p.inputs;
  const double matrix = p.inputs * p.outputs;
  const double output = p.tokens * p.outputs;
  return {others * (input + matrix + output), others * (2 * input + 2 * matrix + output)};
}

}  // namespace

std::string_view name_of(TensorMethod method) { return kNames[static_cast<std::size_t>(method)]; }

std::uint32_t TensorCut::ranks() const {
  switch (method) {
    case TensorMethod::columns:
    case TensorMethod::sequence: return side;
    case TensorMethod::square:
    case TensorMethod::layered: return side * side * depth;
    case TensorMethod::cube: break;
  }
  return side * side * side;
}

std::uint32_t TensorCut::parameter_parts() const { return ranks() / depth; }

std::vector<TensorCut> cuts_among(std::uint32_t ranks) {
  std::vector<TensorCut> cuts{{TensorMethod::columns, ranks}};
  if (ranks == 1) return cuts;
  cuts.push_back({TensorMethod::sequence, ranks});
  for (std::uint32_t side = 2; std::uint64_t{side} * side <= ranks; ++side) {
    const std::uint32_t depth = ranks / (side * side);
    if (ranks % (side * side) != 0) continue;
    cuts.push_back({depth == 1 ? TensorMethod::square : TensorMethod::layered, side, depth});
    if (depth == side) cuts.push_back({TensorMethod::cube, side});
  }
  return cuts;
}

SentElements sent_elements(const TensorCut& cut, const Product& product) {
  switch (cut.method) {
    case TensorMethod::columns: return sent_by_columns(cut.side, product);
    case TensorMethod::sequence: return sent_by_sequence(cut.side, product);
    case TensorMethod::square:
    case TensorMethod::layered: return sent_by_summa(cut.side, cut.depth, product);
    case TensorMethod::cube: break;
  }
  return sent_by_cube(cut.side, product);
}

std::array<Product, 4> layer_products(const DecoderShape& shape, double tokens) {
  const double query = shape.query_width > 0 ? shape.query_width : shape.width;
  return {{{tokens, shape.width, query + 2 * shape.kv_width, false},
           {tokens, query, shape.width, true},
           {tokens, shape.width, (shape.mlp_matrices - 1) * shape.mlp_width, false},
           {tokens, shape.mlp_width, shape.width, true}}};
}

Product head_product(const DecoderShape& shape, double tokens) {
  return {tokens, shape.width, shape.vocabulary, false};
}

SentElements sent_by_layer(const TensorCut& cut, const DecoderShape& shape, double tokens) {
  SentElements sum;
  for (const Product& product : layer_products(shape, tokens)) {
    const SentElements sent = sent_elements(cut, product);
    sum.forward += sent.forward;
    sum.backward += sent.backward;
  }
  return sum;
}

}  // namespace spillway::plan
