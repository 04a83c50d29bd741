// The closed formulas of tensor cuts against ranks that run each algorithm, reach the results of
// one rank, and count what they send.
#include "runtime/plan/grid/tensor_cut.hpp"

#include <gtest/gtest.h>

#include "tests/plan/plan_helpers.hpp"
#include "tests/plan/tensor_ranks.hpp"

namespace spillway::plan::tensor_cut_test {
namespace {

constexpr std::size_t kTokens = 36;
constexpr std::size_t kInputs = 72;
constexpr std::size_t kOutputs = 108;

struct Counted {
  double forward = 0;  ///< elements, of all ranks
  double backward = 0;
};

void expect_block(const Matrix& found, const Matrix& expected) {
  EXPECT_EQ(found.rows, expected.rows);
  EXPECT_EQ(found.columns, expected.columns);
  EXPECT_EQ(found.values, expected.values);
}

/// What one rank has: a product, and its gradients for a given one of the output.
struct Serial {
  Matrix x = numbered(kTokens, kInputs, 1);
  Matrix w = numbered(kInputs, kOutputs, 2);
  Matrix y = x * w;
  Matrix dy = numbered(kTokens, kOutputs, 3);
  Matrix dx = dy * transposed(w);
  Matrix dw = transposed(x) * dy;
};

using Blocks = std::vector<std::vector<Matrix>>;

Blocks grid_of(const Matrix& m, std::size_t side) {
  Blocks blocks(side);
  for (std::size_t r = 0; r < side; ++r) {
    for (std::size_t c = 0; c < side; ++c) blocks[r].push_back(block(m, r, side, c, side));
  }
  return blocks;
}

/// C = A * B: each step broadcasts a column of A along the rows and a row of B along the columns.
Blocks summa(Network& net, const Blocks& a, const Blocks& b) {
  const std::size_t q = a.size();
  Blocks c(q, std::vector<Matrix>(q));
  for (std::size_t t = 0; t < q; ++t) {
    std::vector<Matrix> row_of_b;
    for (std::size_t j = 0; j < q; ++j) row_of_b.push_back(net.broadcast(b[t][j], q));
    for (std::size_t i = 0; i < q; ++i) {
      const Matrix& from_a = net.broadcast(a[i][t], q);
      for (std::size_t j = 0; j < q; ++j) c[i][j] += from_a * row_of_b[j];
    }
  }
  return c;
}

/// C = A * B^T: each step broadcasts a row of B along the columns, and reduces a column of C.
Blocks summa_abt(Network& net, const Blocks& a, const Blocks& b) {
  const std::size_t q = a.size();
  Blocks c(q, std::vector<Matrix>(q));
  for (std::size_t t = 0; t < q; ++t) {
    std::vector<Matrix> row_of_b;
    for (std::size_t j = 0; j < q; ++j) row_of_b.push_back(net.broadcast(b[t][j], q));
    for (std::size_t i = 0; i < q; ++i) {
      std::vector<Matrix> parts;
      for (std::size_t j = 0; j < q; ++j) parts.push_back(a[i][j] * transposed(row_of_b[j]));
      c[i][t] = net.reduce(parts);
    }
  }
  return c;
}

/// C = A^T * B: each step broadcasts a column of A along the rows, and reduces a row of C.
Blocks summa_atb(Network& net, const Blocks& a, const Blocks& b) {
  const std::size_t q = a.size();
  Blocks c(q, std::vector<Matrix>(q));
  for (std::size_t t = 0; t < q; ++t) {
    std::vector<Matrix> column_of_a;
    for (std::size_t i = 0; i < q; ++i) column_of_a.push_back(net.broadcast(a[i][t], q));
    for (std::size_t j = 0; j < q; ++j) {
      std::vector<Matrix> parts;
      for (std::size_t i = 0; i < q; ++i) parts.push_back(transposed(column_of_a[i]) * b[i][j]);
      c[t][j] = net.reduce(parts);
    }
  }
  return c;
}

Counted run_summa(std::size_t side, std::size_t depth) {
  const Serial s;
  Network net;
  Counted counted;
  const Blocks w = grid_of(s.w, side);
  std::vector<Blocks> dw;
  for (std::size_t layer = 0; layer < depth; ++layer) {
    const Blocks x = grid_of(block(s.x, layer, depth), side);
    const Blocks dy = grid_of(block(s.dy, layer, depth), side);
    const Blocks y = summa(net, x, w);
    counted.forward += net.take();
    const Blocks dx = summa_abt(net, dy, w);
    dw.push_back(summa_atb(net, x, dy));
    counted.backward += net.take();
    for (std::size_t i = 0; i < side; ++i) {
      for (std::size_t j = 0; j < side; ++j) {
        expect_block(y[i][j], block(block(s.y, layer, depth), i, side, j, side));
        expect_block(dx[i][j], block(block(s.dx, layer, depth), i, side, j, side));
      }
    }
  }
  for (std::size_t i = 0; i < side; ++i) {
    for (std::size_t j = 0; j < side; ++j) {
      std::vector<Matrix> of_layers;
      for (const Blocks& layer : dw) of_layers.push_back(layer[i][j]);
      expect_block(net.all_reduce(of_layers), block(s.dw, i, side, j, side));
    }
  }
  counted.backward += net.take();
  return counted;
}

/// Rank (i, j, l) has rows j of X(i, l), rows i of W(l, j), and of Y(i, j) rows l.
Counted run_cube(std::size_t q) {
  const Serial s;
  Network net;
  const auto rows_of = [&](const Matrix& m) {
    std::vector<Matrix> rows;
    for (std::size_t r = 0; r < q; ++r) rows.push_back(block(m, r, q));
    return rows;
  };
  // What a rank lacks of a block comes from the q ranks that share it.
  const auto gathered = [&](const Matrix& m) {
    Blocks blocks = grid_of(m, q);
    for (auto& row : blocks) {
      for (Matrix& one : row) one = net.all_gather(rows_of(one));
    }
    return blocks;
  };
  const auto expect_scattered = [&](const std::vector<Matrix>& terms, const Matrix& expected) {
    const std::vector<Matrix> parts = net.reduce_scatter(terms);
    for (std::size_t r = 0; r < q; ++r) expect_block(parts[r], block(expected, r, q));
  };
  const auto multiply = [&](const auto& term, const Matrix& expected) {
    for (std::size_t r = 0; r < q; ++r) {
      for (std::size_t c = 0; c < q; ++c) {
        std::vector<Matrix> terms;
        for (std::size_t k = 0; k < q; ++k) terms.push_back(term(r, c, k));
        expect_scattered(terms, block(expected, r, q, c, q));
      }
    }
  };
  Counted counted;
  {
    const Blocks x = gathered(s.x);
    const Blocks w = gathered(s.w);
    multiply([&](auto i, auto j, auto l) { return x[i][l] * w[l][j]; }, s.y);
    counted.forward = net.take();
  }
  const Blocks x = gathered(s.x);
  const Blocks w = gathered(s.w);
  const Blocks dy = gathered(s.dy);
  multiply([&](auto i, auto l, auto j) { return dy[i][j] * transposed(w[l][j]); }, s.dx);
  multiply([&](auto l, auto j, auto i) { return transposed(x[i][l]) * dy[i][j]; }, s.dw);
  counted.backward = net.take();
  return counted;
}

/// A matrix cut by columns and the next one by rows, with all tokens on each rank between pairs
/// (columns) or with a part of them (sequence).
struct CountedPair {
  Counted by_columns;
  Counted by_rows;
};

CountedPair run_pair(std::size_t ranks, bool sequence) {
  const Serial s;
  const Matrix v = numbered(kOutputs, kInputs, 4);
  const Matrix z = s.y * v;
  const Matrix dz = numbered(kTokens, kInputs, 5);
  const Matrix dx = dz * transposed(v) * transposed(s.w);
  Network net;
  const auto rows_of = [&](const Matrix& m) {
    std::vector<Matrix> rows;
    for (std::size_t r = 0; r < ranks; ++r) rows.push_back(block(m, r, ranks));
    return rows;
  };
  const auto whole = [&](const Matrix& m) { return sequence ? net.all_gather(rows_of(m)) : m; };
  const auto expect_sum = [&](const std::vector<Matrix>& terms, const Matrix& expected) {
    if (!sequence) return expect_block(net.all_reduce(terms), expected);
    const std::vector<Matrix> parts = net.reduce_scatter(terms);
    for (std::size_t r = 0; r < ranks; ++r) expect_block(parts[r], block(expected, r, ranks));
  };
  CountedPair counted;
  const Matrix x = whole(s.x);
  counted.by_columns.forward = net.take();
  std::vector<Matrix> terms;
  for (std::size_t r = 0; r < ranks; ++r) {
    terms.push_back(x * block(s.w, 0, 1, r, ranks) * block(v, r, ranks));
  }
  expect_sum(terms, z);
  counted.by_rows.forward = net.take();
  const Matrix from_next = whole(dz);
  counted.by_rows.backward = net.take();
  const Matrix again = whole(s.x);  // for the gradient of the columns
  terms.clear();
  for (std::size_t r = 0; r < ranks; ++r) {
    const Matrix dy = from_next * transposed(block(v, r, ranks));
    expect_block(transposed(again) * dy,
                 block(transposed(s.x) * (dz * transposed(v)), 0, 1, r, ranks));
    terms.push_back(dy * transposed(block(s.w, 0, 1, r, ranks)));
  }
  expect_sum(terms, dx);
  counted.by_columns.backward = net.take();
  return counted;
}

void expect_sent(const TensorCut& cut, const Product& product, const Counted& counted) {
  const SentElements sent = sent_elements(cut, product);
  EXPECT_DOUBLE_EQ(sent.forward * cut.ranks(), counted.forward);
  EXPECT_DOUBLE_EQ(sent.backward * cut.ranks(), counted.backward);
}

constexpr Product kProduct{kTokens, kInputs, kOutputs, false};
constexpr Product kNext{kTokens, kOutputs, kInputs, true};

TEST(TensorCut, OneDimensionSendsWhatItsRanksSend) {
  for (const std::uint32_t ranks : {1U, 2U, 3U, 4U}) {
    for (const TensorMethod method : {TensorMethod::columns, TensorMethod::sequence}) {
      const CountedPair counted = run_pair(ranks, method == TensorMethod::sequence);
      expect_sent({method, ranks}, kProduct, counted.by_columns);
      expect_sent({method, ranks}, kNext, counted.by_rows);
    }
  }
}

TEST(TensorCut, TwoDimensionsSendWhatTheirRanksSend) {
  for (const std::uint32_t side : {1U, 2U, 3U}) {
    expect_sent({TensorMethod::square, side}, kProduct, run_summa(side, 1));
  }
}

TEST(TensorCut, LayersOfSquaresSendWhatTheirRanksSend) {
  for (const std::uint32_t depth : {1U, 2U, 3U}) {
    expect_sent({TensorMethod::layered, 2, depth}, kProduct, run_summa(2, depth));
    expect_sent({TensorMethod::layered, 3, depth}, kProduct, run_summa(3, depth));
  }
}

TEST(TensorCut, ThreeDimensionsSendWhatTheirRanksSend) {
  for (const std::uint32_t side : {1U, 2U, 3U}) {
    expect_sent({TensorMethod::cube, side}, kProduct, run_cube(side));
  }
}

TEST(TensorCut, OneRankSendsNothingAndOneLayerIsASquare) {
  const TensorCut none[] = {{TensorMethod::columns, 1},
                            {TensorMethod::sequence, 1},
                            {TensorMethod::square, 1},
                            {TensorMethod::layered, 1, 1},
                            {TensorMethod::cube, 1}};
  for (const TensorCut& cut : none) {
    EXPECT_EQ(cut.ranks(), 1U);
    EXPECT_EQ(cut.parameter_parts(), 1U);
    const SentElements sent = sent_elements(cut, kProduct);
    EXPECT_EQ(sent.forward + sent.backward, 0);
  }
  const SentElements layer = sent_elements({TensorMethod::layered, 4, 1}, kProduct);
  const SentElements square = sent_elements({TensorMethod::square, 4}, kProduct);
  EXPECT_EQ(layer.forward, square.forward);
  EXPECT_EQ(layer.backward, square.backward);
}

// The table of each method in Colossal-AI's documentation, whose authors are those of the papers.
TEST(TensorCut, DividesMemoryAsPublished) {
  const nlohmann::json golden = golden_json("tensor_cuts.json");
  int compared = 0;
  for (const nlohmann::json& row : golden.at("rows")) {
    for (const TensorCut& cut : cuts_among(row.at("ranks"))) {
      if (name_of(cut.method) != row.at("method").get<std::string>()) continue;
      if (cut.depth != row.at("depth") || cut.side != row.at("side")) continue;
      EXPECT_EQ(cut.parameter_parts(), row.at("parameter_parts"));
      EXPECT_EQ(cut.ranks(), row.at("activation_parts"));
      ++compared;
    }
  }
  EXPECT_EQ(compared, golden.at("rows").size());
  // 3 (q - 1) (d + 1) / (d q) over 6 (q - 1) / q, for a square input and matrix. The documentation
  // leaves out that the layers add up gradients: 2 (d - 1) / d of a matrix.
  const double n = 64;
  const auto all = [](const SentElements& sent) { return sent.forward + sent.backward; };
  const Product square{n, n, n, false};
  const double two = all(sent_elements({TensorMethod::square, 4}, square));
  const double layered = all(sent_elements({TensorMethod::layered, 4, 3}, square));
  EXPECT_DOUBLE_EQ((layered - 2 * (2.0 / 3) * n * n / 16) / two, (3 + 1) / (2.0 * 3));
  // 6 (q - 1) / q^3; what is gathered again adds 2.
  const double cube = all(sent_elements({TensorMethod::cube, 4}, square));
  EXPECT_DOUBLE_EQ(cube / (n * n), (6 + 2) * (4 - 1) / 64.0);
}

TEST(TensorCut, FindsEveryCutOfANumberOfRanks) {
  const auto names = [](std::uint32_t ranks) {
    std::string text;
    for (const TensorCut& cut : cuts_among(ranks)) {
      EXPECT_EQ(cut.ranks(), ranks);
      text += std::string(name_of(cut.method)) + ";";
    }
    return text;
  };
  EXPECT_EQ(names(1), "1-D;");
  EXPECT_EQ(names(2), "1-D;1-D sequence;");
  EXPECT_EQ(names(4), "1-D;1-D sequence;2-D;");
  EXPECT_EQ(names(8), "1-D;1-D sequence;2.5-D;3-D;");
  EXPECT_EQ(names(64), "1-D;1-D sequence;2.5-D;2.5-D;3-D;2-D;");
}

// A GPT's layer, by hand: 1-D has two all-reduces forward and two backward; of SUMMA's forward the
// inputs have 1 + 1 + 1 + 4 = 7 widths, and the matrices 3 + 1 + 4 + 4 = 12 squares of it.
TEST(TensorCut, AddsUpTheProductsOfALayer) {
  constexpr double kWidth = 64;
  constexpr double kRows = 48;
  const DecoderShape gpt{
      .layers = 1, .width = kWidth, .kv_width = kWidth, .mlp_width = 4 * kWidth, .mlp_matrices = 2};
  const SentElements flat = sent_by_layer({TensorMethod::columns, 4}, gpt, kRows);
  EXPECT_DOUBLE_EQ(flat.forward, 4 * 0.75 * kRows * kWidth);
  EXPECT_DOUBLE_EQ(flat.backward, 4 * 0.75 * kRows * kWidth);
  const SentElements square = sent_by_layer({TensorMethod::square, 2}, gpt, kRows);
  EXPECT_DOUBLE_EQ(square.forward, (7 * kRows * kWidth + 12 * kWidth * kWidth) / 4);
  EXPECT_DOUBLE_EQ(square.backward, 2 * square.forward);
}

}  // namespace
}  // namespace spillway::plan::tensor_cut_test
