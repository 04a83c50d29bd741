// Embedding and cross-entropy against fp64.
#include <limits>

#include "tests/model/ops_support.hpp"

namespace spillway::model::ops_loss_test {
namespace {

class LossOps : public OpsTest {
 protected:
  std::vector<std::int32_t> tokens(std::size_t count, std::uint32_t vocabulary) {
    std::vector<std::int32_t> result(count);
    for (std::int32_t& token : result) token = random_.below(vocabulary);
    return result;
  }
  /// Tokens in the device's memory.
  static TestMemory on_device(const std::vector<std::int32_t>& values) {
    return TestMemory(std::span<const std::int32_t>(values));
  }
  static Tokens view(const TestMemory& tokens) { return tokens.device().as<const std::int32_t>(); }

  void check_embedding(const EmbeddingShape& s) {
    const std::size_t count = std::size_t{s.batch} * s.sequence;
    const auto ids = tokens(count, static_cast<std::uint32_t>(s.vocabulary));
    const TestMemory device_ids = on_device(ids);
    const Operand table = random(s.vocabulary * s.width);
    const Operand places = random(std::max<std::size_t>(1, s.positions * s.width));
    const Operand dy = random(count * s.width);
    std::vector<double> out(count * s.width);
    std::vector<double> d_table(s.vocabulary * s.width);
    std::vector<double> d_places(s.positions * s.width);
    for (std::size_t t = 0; t < count; ++t) {
      for (std::size_t i = 0; i < s.width; ++i) {
        const std::size_t word = static_cast<std::size_t>(ids[t]) * s.width + i;
        const std::size_t place = t % s.sequence * s.width + i;
        out[t * s.width + i] = table.exact[word] + (s.positions > 0 ? places.exact[place] : 0);
        const bool padding = s.padding && static_cast<std::int32_t>(*s.padding) == ids[t];
        if (!padding) d_table[word] += dy.exact[t * s.width + i];
        if (s.positions > 0) d_places[place] += dy.exact[t * s.width + i];
      }
    }
    const TestMemory actual = elements(out.size());
    ops_->embedding_forward(s, view(device_ids), table.device(), places.device(), actual.device());
    expect_stored(actual, out, 1e-7, "out");
    const TestMemory words_gradient = floats(d_table.size());
    const TestMemory places_gradient = floats(d_places.size());
    const TestMemory space = workspace(ops_->embedding_workspace(s));
    for (const bool first : {true, false}) {
      ops_->embedding_backward(s, view(device_ids), dy.device(),
                               {words_gradient.device().as<float>(), first},
                               {places_gradient.device().as<float>(), first}, space.device());
    }
    for (double& value : d_table) value *= 2;
    for (double& value : d_places) value *= 2;
    expect_floats(words_gradient, d_table, 1e-6, "table gradient, twice");
    if (s.positions > 0) expect_floats(places_gradient, d_places, 1e-6, "positions, twice");
  }

  void check_loss(std::size_t rows, std::size_t vocabulary, float spread) {
    SCOPED_TRACE(testing::Message() << rows << " rows of " << vocabulary);
    constexpr float kScale = 0.25F;
    std::vector<float> logits(rows * vocabulary);
    for (float& value : logits) value = random_.normal(spread);
    const auto targets = tokens(rows, static_cast<std::uint32_t>(vocabulary));
    std::vector<double> gradient(logits.size());
    double loss = 0;
    for (std::size_t r = 0; r < rows; ++r) {
      const float* x = logits.data() + r * vocabulary;
      const double top = static_cast<double>(*std::max_element(x, x + vocabulary));
      double total = 0;
      for (std::size_t i = 0; i < vocabulary; ++i) {
        total += std::exp(static_cast<double>(x[i]) - top);
      }
      const auto target = static_cast<std::size_t>(targets[r]);
      loss += std::log(total) + top - static_cast<double>(x[target]);
      for (std::size_t i = 0; i < vocabulary; ++i) {
        const double p = std::exp(static_cast<double>(x[i]) - top) / total;
        gradient[r * vocabulary + i] = static_cast<double>(kScale) * (p - (i == target ? 1 : 0));
      }
    }
    const TestMemory device_logits{std::span<const float>(logits)};
    const TestMemory device_targets = on_device(targets);
    const TestMemory out = elements(logits.size());
    const TestMemory space = workspace(ops_->reduction_workspace(rows, 2));
    const TestMemory sum(sizeof(double));
    CrossEntropyArguments arguments{.rows = rows,
                                    .vocabulary = vocabulary,
                                    .logits = device_logits.device().as<const float>(),
                                    .targets = view(device_targets),
                                    .loss_sum = sum.device().as<double>(),
                                    .first = true,
                                    .gradient_scale = kScale,
                                    .logits_gradient = out.device(),
                                    .workspace = space.device()};
    ops_->cross_entropy(arguments);
    EXPECT_NEAR(sum.as<double>()[0], loss, 1e-6 * loss + 1e-9);
    expect_stored(out, gradient, 1e-6, "gradient");
    arguments.first = false;
    arguments.logits_gradient = {};
    ops_->cross_entropy(arguments);
    EXPECT_NEAR(sum.as<double>()[0], 2 * loss, 2e-6 * loss + 1e-9) << "the second chunk adds";
    if (dtype_ != DType::fp32) return;
    arguments.logits_gradient = device_logits.device();
    ops_->cross_entropy(arguments);
    expect_stored(device_logits, gradient, 1e-6, "gradient over the logits");
  }
};

TEST_P(LossOps, TilesOfAnEmbeddingMakeTheWhole) {
  const EmbeddingShape whole{
      .batch = 3, .sequence = 11, .width = 37, .vocabulary = 29, .padding = 20};
  const TestMemory device_ids = on_device(tokens(33, 29));
  const Tokens ids = view(device_ids);
  const Operand table = random(29 * 37);
  const Operand dy = random(33 * 37);
  const TestMemory out = elements(33 * 37);
  const TestMemory out_of_tiles = elements(33 * 37);
  const TestMemory gradient = floats(29 * 37);
  const TestMemory gradient_of_tiles = floats(29 * 37);
  ops_->embedding_forward(whole, ids, table.device(), {}, out.device());
  const TestMemory space = workspace(ops_->embedding_workspace(whole));
  ops_->embedding_backward(whole, ids, dy.device(), {gradient.device().as<float>(), true}, {},
                           space.device());
  for (const auto& [first, last] : {std::pair{0U, 12U}, {12U, 13U}, {13U, 29U}}) {
    EmbeddingShape tile = whole;
    tile.first_row = first;
    tile.rows = last - first;
    const std::size_t row = 37 * size_of(dtype_);
    ops_->embedding_forward(tile, ids, table.device().subspan(first * row, tile.rows * row), {},
                            out_of_tiles.device());
    const auto rows = gradient_of_tiles.device().as<float>().subspan(first * 37, tile.rows * 37);
    ops_->embedding_backward(tile, ids, dy.device(), {rows, true}, {}, space.device());
  }
  EXPECT_EQ(decode(out_of_tiles, dtype_), decode(out, dtype_));
  EXPECT_EQ(decode(gradient_of_tiles, DType::fp32), decode(gradient, DType::fp32));
}

/// Softmax over tiles in order is softmax over the whole row.
TEST_P(LossOps, TilesOfTheVocabularyMakeTheWholeLossAndGradient) {
  constexpr std::size_t kRows = 5;
  constexpr std::size_t kVocabulary = 333;
  constexpr float kScale = 0.25F;
  for (const float spread : {1.0F, 30.0F}) {
    std::vector<float> logits(kRows * kVocabulary);
    for (float& value : logits) value = random_.normal(spread);
    auto targets = tokens(kRows, kVocabulary);
    targets[2] = -1;
    const TestMemory space = workspace(ops_->reduction_workspace(kRows, 2));
    const TestMemory gradient = elements(logits.size());
    const TestMemory device_logits{std::span<const float>(logits)};
    const TestMemory device_targets = on_device(targets);
    const TestMemory sum(sizeof(double));
    const TestMemory sum_of_tiles(sizeof(double));
    ops_->cross_entropy({.rows = kRows,
                         .vocabulary = kVocabulary,
                         .logits = device_logits.device().as<const float>(),
                         .targets = view(device_targets),
                         .loss_sum = sum.device().as<double>(),
                         .first = true,
                         .gradient_scale = kScale,
                         .logits_gradient = gradient.device(),
                         .workspace = space.device()});
    const TestMemory scan_memory(kRows * sizeof(VocabularyScan));
    const auto scans = scan_memory.device().as<VocabularyScan>();
    std::vector<float> expected = decode(gradient, dtype_);
    double largest = 0;
    for (const float value : expected) {
      largest = std::max(largest, std::fabs(static_cast<double>(value)));
    }
    for (const bool scanning : {true, false}) {
      for (const auto& [first, last] : {std::pair{0U, 100U}, {100U, 101U}, {101U, 333U}}) {
        std::vector<float> part;
        for (std::size_t r = 0; r < kRows; ++r) {
          const float* row = logits.data() + r * kVocabulary;
          part.insert(part.end(), row + first, row + last);
        }
        const TestMemory device_part{std::span<const float>(part)};
        const VocabularyTile tile{.rows = kRows,
                                  .columns = last - first,
                                  .first_column = first,
                                  .vocabulary = kVocabulary,
                                  .logits = device_part.device().as<const float>(),
                                  .targets = view(device_targets)};
        if (scanning) {
          ops_->scan_vocabulary(tile, scans, tile.first_column == 0);
          continue;
        }
        const TestMemory out = elements(part.size());
        ops_->vocabulary_gradient(tile, scans, kScale, out.device());
        const std::vector<float> actual = decode(out, dtype_);
        for (std::size_t i = 0; i < actual.size(); ++i) {
          const std::size_t at = i / tile.columns * kVocabulary + first + i % tile.columns;
          // Totals differ by the order of fp64 and short fp32 sums; results may round apart.
          ASSERT_NEAR(
              actual[i], expected[at],
              2 * rounding() * std::fabs(static_cast<double>(expected[at])) + 1e-6 * largest);
        }
      }
      if (!scanning) continue;
      ops_->sum_losses(view(device_targets), scans, sum_of_tiles.device().as<double>(),
                       space.device());
      const double whole = sum.as<double>()[0];
      EXPECT_NEAR(sum_of_tiles.as<double>()[0], whole, 1e-6 * whole);
    }
  }
}

/// What lies between the rows is neither read nor written: it is NaN, and stays so.
TEST_P(LossOps, RowsOfLogitsMayLieApart) {
  constexpr std::size_t kRows = 5;
  constexpr std::size_t kVocabulary = 333;
  constexpr std::size_t kStride = 344;
  std::vector<float> logits(kRows * kVocabulary);
  for (float& value : logits) value = random_.normal(3);
  std::vector<float> apart(kRows * kStride, std::nanf(""));
  for (std::size_t i = 0; i < logits.size(); ++i) {
    apart[i / kVocabulary * kStride + i % kVocabulary] = logits[i];
  }
  auto targets = tokens(kRows, kVocabulary);
  targets[3] = -1;
  const TestMemory device_targets = on_device(targets);
  const TestMemory space = workspace(ops_->reduction_workspace(kRows, 2));
  const TestMemory device_scans(kRows * sizeof(VocabularyScan));
  const auto scans = device_scans.device().as<VocabularyScan>();
  const auto differentiate = [&](const std::vector<float>& values, std::size_t stride, bool tile) {
    const TestMemory input{std::span<const float>(values)};
    TestMemory gradient = elements(values.size());
    const TestMemory sum(sizeof(double));
    const auto rows = input.device().as<const float>();
    if (tile) {
      const VocabularyTile all{.rows = kRows,
                               .columns = kVocabulary,
                               .vocabulary = kVocabulary,
                               .stride = stride,
                               .logits = rows,
                               .targets = view(device_targets)};
      ops_->scan_vocabulary(all, scans, true);
      ops_->sum_losses(all.targets, scans, sum.device().as<double>(), space.device());
      ops_->vocabulary_gradient(all, scans, 0.5F, gradient.device());
    } else {
      ops_->cross_entropy({.rows = kRows,
                           .vocabulary = kVocabulary,
                           .stride = stride,
                           .logits = rows,
                           .targets = view(device_targets),
                           .loss_sum = sum.device().as<double>(),
                           .first = true,
                           .gradient_scale = 0.5F,
                           .logits_gradient = gradient.device(),
                           .workspace = space.device()});
    }
    return std::pair(decode(gradient, dtype_), sum.as<double>()[0]);
  };
  for (const bool tile : {false, true}) {
    const auto [expected, loss] = differentiate(logits, 0, tile);
    const auto [actual, loss_apart] = differentiate(apart, kStride, tile);
    EXPECT_NEAR(loss_apart, loss, 1e-6 * loss);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const std::size_t column = i % kStride;
      if (column >= kVocabulary) {
        EXPECT_TRUE(std::isnan(actual[i])) << i;
        continue;
      }
      const auto value = static_cast<double>(expected[i / kStride * kVocabulary + column]);
      // Device lanes meet other columns: totals differ by the order of their sums.
      EXPECT_NEAR(actual[i], value, 2 * rounding() * std::fabs(value) + 1e-6) << i;
    }
  }
}

TEST_P(LossOps, EmbeddingAgreesWithFp64) {
  check_embedding({.batch = 3, .sequence = 11, .width = 37, .vocabulary = 9, .positions = 16});
  check_embedding({.batch = 2, .sequence = 8, .width = 130, .vocabulary = 50, .positions = 0});
  check_embedding({.batch = 1, .sequence = 1, .width = 1, .vocabulary = 1, .positions = 1});
  check_embedding({.batch = 3, .sequence = 11, .width = 37, .vocabulary = 9, .padding = 4});
  check_embedding({.batch = 2, .sequence = 9, .width = 16, .vocabulary = 3, .padding = 0});
}

TEST_P(LossOps, CrossEntropyAgreesWithFp64) {
  check_loss(5, 2, 1);
  check_loss(33, 131, 3);
  check_loss(3, 2500, 1);
  check_loss(2, 50, 60);
  check_loss(1, 1, 1);
}

TEST_P(LossOps, IgnoresNegativeTargets) {
  const std::vector<float> logits = {1, 2, 3, 4, 5, 6};
  const TestMemory device_logits{std::span<const float>(logits)};
  const TestMemory targets = on_device({-1, 1});
  const TestMemory space = workspace(ops_->reduction_workspace(2, 2));
  const TestMemory out = elements(6);
  const TestMemory sum(sizeof(double));
  ops_->cross_entropy({.rows = 2,
                       .vocabulary = 3,
                       .logits = device_logits.device().as<const float>(),
                       .targets = view(targets),
                       .loss_sum = sum.device().as<double>(),
                       .first = true,
                       .gradient_scale = 1,
                       .logits_gradient = out.device(),
                       .workspace = space.device()});
  EXPECT_NEAR(sum.as<double>()[0], std::log(std::exp(-1) + 1 + std::exp(1)), 1e-6);
  const std::vector<float> gradient = decode(out, dtype_);
  EXPECT_THAT(std::vector<float>(gradient.begin(), gradient.begin() + 3), testing::Each(0.0F));
  EXPECT_LT(gradient[4], 0);
}

TEST_P(LossOps, NonFiniteLogitsGiveANonFiniteLoss) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    std::vector<float> logits(40);
    logits[17] = bad;
    const TestMemory device_logits{std::span<const float>(logits)};
    const TestMemory targets = on_device({3});
    const TestMemory space = workspace(ops_->reduction_workspace(1, 2));
    const TestMemory sum(sizeof(double));
    ops_->cross_entropy({.rows = 1,
                         .vocabulary = 40,
                         .logits = device_logits.device().as<const float>(),
                         .targets = view(targets),
                         .loss_sum = sum.device().as<double>(),
                         .first = true,
                         .gradient_scale = 1,
                         .logits_gradient = {},
                         .workspace = space.device()});
    EXPECT_FALSE(std::isfinite(sum.as<double>()[0]));
  }
}

INSTANTIATE_TEST_SUITE_P(EveryCase, LossOps, testing::ValuesIn(all_cases()), name_of_case);

}  // namespace
}  // namespace spillway::model::ops_loss_test
