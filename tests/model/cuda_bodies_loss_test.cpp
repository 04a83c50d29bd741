// Kernel bodies of embedding and cross-entropy against the host Ops, the tokens' sort that the
// embedding's gradient rests on, and what device code does where the host refuses.
#include <algorithm>
#include <limits>

#include "tests/model/cuda_bodies_support.hpp"

namespace spillway::model::cuda_bodies_loss_test {
namespace {

namespace bodies = cuda::bodies;

class CudaLoss : public CudaBodies {
 protected:
  std::vector<std::int32_t> tokens(std::size_t count, std::uint32_t vocabulary) {
    std::vector<std::int32_t> result(count);
    for (std::int32_t& token : result) token = random_.below(vocabulary);
    return result;
  }
  static Tokens device(const std::vector<std::int32_t>& values) {
    return {values.data(), values.size()};
  }

  void check_embedding(const EmbeddingShape& s, std::size_t shift = 0) {
    SCOPED_TRACE(testing::Message() << s.batch << "x" << s.sequence << " tokens of " << s.vocabulary
                                    << ", width " << s.width << ", shift " << shift);
    const std::size_t count = std::size_t{s.batch} * s.sequence;
    const auto ids = tokens(count, static_cast<std::uint32_t>(s.vocabulary));
    const Operand table = random(s.vocabulary * s.width + shift);
    const Operand places = random(s.positions * s.width);
    const Operand dy = random(count * s.width + shift);
    compare([&](Ops& ops) {
      TestMemory out = elements(count * s.width + shift);
      ops.embedding_forward(s, device(ids), from(table.memory, shift), places.device(),
                            from(out, shift));
      TestMemory words = floats(s.vocabulary * s.width);
      TestMemory positions = floats(s.positions * s.width);
      const TestMemory space(ops.embedding_workspace(s).value());
      for (const bool first : {true, false}) {
        ops.embedding_backward(s, device(ids), from(dy.memory, shift),
                               {words.device().as<float>(), first},
                               {positions.device().as<float>(), first}, space.device());
      }
      Results results;
      results.push_back({"out", std::move(out), dtype_});
      results.push_back({"table gradient", std::move(words), DType::fp32});
      results.push_back({"position gradient", std::move(positions), DType::fp32});
      return results;
    });
  }

  void check_loss(std::size_t rows, std::size_t vocabulary, float spread, bool over_logits) {
    SCOPED_TRACE(testing::Message() << rows << " rows of " << vocabulary << ", " << spread);
    std::vector<float> values(rows * vocabulary);
    for (float& value : values) value = random_.normal(spread);
    const TestMemory logits{std::span<const float>(values)};
    auto targets = tokens(rows, static_cast<std::uint32_t>(vocabulary));
    if (rows > 2) targets[rows / 2] = -1;
    compare([&](Ops& ops) {
      TestMemory input = copy(logits);
      TestMemory gradient = over_logits ? TestMemory() : elements(values.size());
      const TestMemory space(ops.reduction_workspace(rows, 2).value());
      double sum = -7;
      CrossEntropyArguments a{.rows = rows,
                              .vocabulary = vocabulary,
                              .logits = input.device().as<const float>(),
                              .targets = device(targets),
                              .loss_sum = {&sum, 1},
                              .first = true,
                              .gradient_scale = 0.25F,
                              .logits_gradient = {},
                              .workspace = space.device()};
      ops.cross_entropy(a);
      a.first = false;
      a.logits_gradient = over_logits ? input.device() : gradient.device();
      ops.cross_entropy(a);
      const float total = static_cast<float>(sum);
      Results results;
      results.push_back({"loss", TestMemory(std::span(&total, 1)), DType::fp32});
      results.push_back({"gradient", over_logits ? std::move(input) : std::move(gradient), dtype_});
      return results;
    });
  }
};

/// Rows and columns of a tile that are no whole packs, targets in every tile and in none.
TEST_P(CudaLoss, TilesOfTheVocabulary) {
  constexpr std::size_t kRows = 9;
  constexpr std::size_t kVocabulary = 1300;
  for (const float spread : {1.0F, 40.0F}) {
    std::vector<float> values(kRows * kVocabulary);
    for (float& value : values) value = random_.normal(spread);
    auto targets = tokens(kRows, kVocabulary);
    targets[4] = -1;
    compare([&](Ops& ops) {
      std::vector<VocabularyScan> scans(kRows);
      const TestMemory space(ops.reduction_workspace(kRows, 2).value());
      Results results;
      for (const bool scanning : {true, false}) {
        for (const auto& [first, last] : {std::pair{0U, 600U}, {600U, 601U}, {601U, 1300U}}) {
          std::vector<float> part;
          for (std::size_t r = 0; r < kRows; ++r) {
            const float* row = values.data() + r * kVocabulary;
            part.insert(part.end(), row + first, row + last);
          }
          const TestMemory logits{std::span<const float>(part)};
          const VocabularyTile tile{.rows = kRows,
                                    .columns = last - first,
                                    .first_column = first,
                                    .vocabulary = kVocabulary,
                                    .logits = logits.device().as<const float>(),
                                    .targets = device(targets)};
          if (scanning) {
            ops.scan_vocabulary(tile, {scans.data(), kRows}, tile.first_column == 0);
            continue;
          }
          TestMemory gradient = elements(part.size());
          ops.vocabulary_gradient(tile, {scans.data(), kRows}, 0.25F, gradient.device());
          results.push_back({"gradient of a tile", std::move(gradient), dtype_});
        }
      }
      double sum = -7;
      ops.sum_losses(device(targets), {scans.data(), kRows}, {&sum, 1}, space.device());
      const auto total = static_cast<float>(sum);
      results.push_back({"loss", TestMemory(std::span(&total, 1)), DType::fp32});
      return results;
    });
  }
}

TEST_P(CudaLoss, TilesOfTheEmbedding) {
  const EmbeddingShape whole{
      .batch = 2, .sequence = 40, .width = 33, .vocabulary = 57, .padding = 30};
  const auto ids = tokens(80, 57);
  const Operand table = random(57 * 33);
  const Operand dy = random(80 * 33);
  compare([&](Ops& ops) {
    TestMemory out = elements(80 * 33);
    TestMemory gradient = floats(57 * 33);
    const TestMemory space(ops.embedding_workspace(whole).value());
    for (const auto& [first, last] : {std::pair{0U, 20U}, {20U, 21U}, {21U, 57U}}) {
      EmbeddingShape tile = whole;
      tile.first_row = first;
      tile.rows = last - first;
      const Tensor rows = from(table.memory, first * 33);
      ops.embedding_forward(tile, device(ids), rows, {}, out.device());
      const auto sums = gradient.device().as<float>().subspan(first * 33, tile.rows * 33);
      for (const bool overwrite : {true, false}) {
        ops.embedding_backward(tile, device(ids), dy.device(), {sums, overwrite}, {},
                               space.device());
      }
    }
    Results results;
    results.push_back({"out", std::move(out), dtype_});
    results.push_back({"table gradient", std::move(gradient), DType::fp32});
    return results;
  });
}

TEST_P(CudaLoss, EmbeddingAgreesWithTheHost) {
  check_embedding({.batch = 3, .sequence = 11, .width = 40, .vocabulary = 9, .positions = 16});
  check_embedding({.batch = 2, .sequence = 8, .width = 130, .vocabulary = 50, .positions = 0});
  check_embedding({.batch = 1, .sequence = 1, .width = 1, .vocabulary = 1, .positions = 1});
  check_embedding({.batch = 4, .sequence = 300, .width = 8, .vocabulary = 3000, .positions = 0});
  check_embedding({.batch = 2, .sequence = 5, .width = 16, .vocabulary = 7, .positions = 5}, 1);
  check_embedding({.batch = 3, .sequence = 21, .width = 40, .vocabulary = 9, .padding = 4});
  check_embedding({.batch = 3, .sequence = 21, .width = 40, .vocabulary = 9, .padding = 0});
}

TEST_P(CudaLoss, EmbeddingGradientHasTheBitsOfTheHost) {
  const EmbeddingShape s{
      .batch = 2, .sequence = 700, .width = 24, .vocabulary = 20, .positions = 0};
  const auto ids = tokens(1400, 11);  // rows 11 to 19 have no token
  const Operand dy = random(1400 * 24);
  std::vector<TestMemory> gradients;
  const auto host = host::make_ops({.compute = dtype_});
  SerialOps own(dtype_, Order::forward);
  for (Ops* ops : {host.get(), static_cast<Ops*>(&own)}) {
    const TestMemory space(ops->embedding_workspace(s).value());
    gradients.push_back(floats(20 * 24));
    ops->embedding_backward(s, device(ids), dy.device(),
                            {gradients.back().device().as<float>(), true}, {}, space.device());
  }
  EXPECT_EQ(std::memcmp(gradients[0].data(), gradients[1].data(), gradients[0].size()), 0);
  const auto unused = gradients[1].as<float>().subspan(std::size_t{11} * 24);
  EXPECT_TRUE(std::all_of(unused.begin(), unused.end(), [](float x) { return x == 0; }));
}

TEST_P(CudaLoss, EmbeddingMarksTokensOutsideTheVocabularyAndLeavesOutTheirGradient) {
  const EmbeddingShape s{.batch = 1, .sequence = 5, .width = 8, .vocabulary = 3, .positions = 0};
  const std::vector<std::int32_t> ids = {1, 3, -1, 1, 1 << 30};
  const Operand table = random(24);
  const Operand dy = random(40);
  SerialOps own(dtype_, Order::backward);
  const TestMemory out = elements(40);
  own.embedding_forward(s, device(ids), table.device(), {}, out.device());
  const std::vector<float> values = decode(out, dtype_);
  const TestMemory gradient = floats(24);
  const TestMemory space(own.embedding_workspace(s).value());
  own.embedding_backward(s, device(ids), dy.device(), {gradient.device().as<float>(), true}, {},
                         space.device());
  for (std::size_t i = 0; i < 8; ++i) {
    for (const std::size_t bad : {1U, 2U, 4U}) EXPECT_TRUE(std::isnan(values[bad * 8 + i]));
    EXPECT_EQ(static_cast<double>(values[24 + i]), table.exact[8 + i]);
    EXPECT_EQ(gradient.as<float>()[i], 0);
    EXPECT_EQ(gradient.as<float>()[8 + i], static_cast<float>(dy.exact[i] + dy.exact[24 + i]));
    EXPECT_EQ(gradient.as<float>()[16 + i], 0);
  }
}

TEST_P(CudaLoss, CrossEntropyAgreesWithTheHost) {
  for (const bool over_logits : {false, true}) {
    if (over_logits && dtype_ != DType::fp32) continue;
    check_loss(1, 1, 1, over_logits);
    check_loss(5, 2, 1, over_logits);
    check_loss(9, 131, 3, over_logits);
    check_loss(7, 4096, 2, over_logits);
    check_loss(3, 12345, 1, over_logits);
    check_loss(2, 50, 60, over_logits);
  }
}

TEST_P(CudaLoss, CrossEntropyOfLogitsThatAreMinusInfinityOrNotANumber) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<std::int32_t> targets = {3};
  const auto loss = [&](std::size_t at, float value) {
    std::vector<float> logits(600, 1.0F);
    logits[at] = value;
    const TestMemory space(bodies::reduction_bytes(1, 2));
    const TestMemory gradient = elements(600);
    double sum = 0;
    SerialOps own(dtype_, Order::forward);
    own.cross_entropy({.rows = 1,
                       .vocabulary = 600,
                       .logits = {logits.data(), 600},
                       .targets = device(targets),
                       .loss_sum = {&sum, 1},
                       .first = true,
                       .gradient_scale = 1,
                       .logits_gradient = gradient.device(),
                       .workspace = space.device()});
    return sum;
  };
  EXPECT_NEAR(loss(100, -kInfinity), std::log(599.0), 1e-6);
  for (const std::size_t at : {0U, 3U, 17U, 599U}) {
    EXPECT_FALSE(std::isfinite(loss(at, kInfinity)));
    EXPECT_TRUE(std::isnan(loss(at, std::nanf(""))));
  }
}

TEST_P(CudaLoss, CrossEntropyOfATargetOutsideTheVocabularyIsNotANumber) {
  const std::vector<std::int32_t> targets = {0, 8};
  const std::vector<float> logits(16, 0.5F);
  const TestMemory space(bodies::reduction_bytes(2, 2));
  const TestMemory gradient = elements(16);
  double sum = 0;
  SerialOps own(dtype_, Order::forward);
  own.cross_entropy({.rows = 2,
                     .vocabulary = 8,
                     .logits = {logits.data(), 16},
                     .targets = device(targets),
                     .loss_sum = {&sum, 1},
                     .first = true,
                     .gradient_scale = 1,
                     .logits_gradient = gradient.device(),
                     .workspace = space.device()});
  EXPECT_TRUE(std::isnan(sum));
  const std::vector<float> values = decode(gradient, dtype_);
  EXPECT_TRUE(
      std::all_of(values.begin(), values.begin() + 8, [](float x) { return std::isfinite(x); }));
  EXPECT_TRUE(std::all_of(values.begin() + 8, values.end(), [](float x) { return std::isnan(x); }));
}

INSTANTIATE_TEST_SUITE_P(Serial, CudaLoss, all_dtypes(), name_of_dtype);

TEST(CudaTokenSort, SortsByTokenAndThenByPosition) {
  Random random;
  for (const std::uint64_t vocabulary : {1U, 15U, 16U, 300U, 151'936U}) {
    for (const std::size_t count : {1U, 511U, 512U, 513U, 5000U}) {
      std::vector<std::int32_t> tokens(count);
      // Some tokens everywhere, some at or above the vocabulary, some negative.
      for (std::int32_t& token : tokens) {
        const auto limit = static_cast<std::uint32_t>(vocabulary + 2);
        token = random.below(4) == 0 ? random.below(3) - 1 : random.below(limit);
      }
      std::vector<bodies::Occurrence> expected(count);
      for (std::size_t i = 0; i < count; ++i) {
        const bool valid = tokens[i] >= 0 && static_cast<std::uint64_t>(tokens[i]) < vocabulary;
        const auto token = valid ? static_cast<std::uint64_t>(tokens[i]) : vocabulary;
        expected[i] = token << 32 | i;
      }
      std::sort(expected.begin(), expected.end());
      for (const Order order : {Order::forward, Order::backward}) {
        std::vector<bodies::Occurrence> even(count), odd(count);
        const bodies::TokenSort sort{.tokens = tokens.data(),
                                     .count = count,
                                     .vocabulary = vocabulary,
                                     .even = even.data(),
                                     .odd = odd.data(),
                                     .passes = bodies::sort_passes(vocabulary)};
        SerialRunner runner(order);
        runner.teams<bodies::TokenSort::kLanes>(sort, 1, bodies::TokenSort::kShared);
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), sort.result()))
            << count << " tokens of " << vocabulary << ", seed " << Random::seed();
      }
    }
  }
}

}  // namespace
}  // namespace spillway::model::cuda_bodies_loss_test
