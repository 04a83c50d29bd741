// Tokens, parameters and the directory of a benchmark.
#include "tools/bench/synthetic_training.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "runtime/data/token_file.hpp"
#include "tools/bench/model_shapes.hpp"

namespace spillway::bench::synthetic_training_test {
namespace {

TEST(ScratchDirectory, DisappearsWithWhatItHolds) {
  std::filesystem::path path;
  {
    const ScratchDirectory scratch(::testing::TempDir());
    path = scratch.path();
    write_random_tokens(path / "data", 300, 1000, 1);
    EXPECT_TRUE(std::filesystem::exists(path / "data/train.bin"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(SyntheticTokens, CoverTheVocabularyEvenlyAndRepeatWithTheSeed) {
  constexpr std::uint32_t kVocabulary = 70'000;  // needs 32-bit tokens
  constexpr std::uint64_t kCount = 200'001;
  const ScratchDirectory scratch(::testing::TempDir());
  write_random_tokens(scratch.path(), kVocabulary, kCount, 5);
  const data::Meta meta = data::load_meta(scratch.path() / "meta.json");
  EXPECT_EQ(meta.vocab_size, kVocabulary);
  const data::TokenFile file(scratch.path() / "train.bin", meta.dtype);
  ASSERT_EQ(file.size(), kCount);
  std::vector<std::int32_t> tokens(kCount);
  file.read(0, tokens, kVocabulary);  // throws at a token beyond the vocabulary
  const double mean = std::accumulate(tokens.begin(), tokens.end(), 0.0) / kCount;
  // Six standard deviations of the mean of that many uniform numbers.
  EXPECT_NEAR(mean / kVocabulary, 0.5, 6 / std::sqrt(12.0 * kCount));
  std::vector<std::int32_t> again(kCount);
  fill_random_tokens(again, kVocabulary, 5);
  EXPECT_EQ(tokens, again);
  fill_random_tokens(again, kVocabulary, 6);
  EXPECT_NE(tokens, again);
}

TEST(NoiseParameters, DoNotDependOnHowReadsAreCut) {
  const model::ModelConfig config = model_named("small");
  const NoiseParameters source(config);
  const model::ModelLayout layout = model::make_layout(config);
  const BlockIndex layer{1};
  const std::uint64_t count = layout.blocks[1].padded_parameters.value();
  std::vector<float> whole(count);
  source.read(layer, ElementCount{}, whole);
  std::vector<float> parts(count);
  const std::uint64_t cut = count / 3;
  source.read(layer, ElementCount{}, std::span(parts).first(cut));
  source.read(layer, ElementCount{cut}, std::span(parts).subspan(cut));
  EXPECT_EQ(whole, parts);
  for (const model::ParameterTensor& tensor : layout.blocks[1].tensors) {
    const auto values = std::span(whole).subspan(tensor.first.value(), tensor.count.value());
    double squares = 0;
    for (const float value : values) squares += static_cast<double>(value) * value;
    const double deviation = std::sqrt(squares / static_cast<double>(values.size()));
    switch (tensor.initial) {
      case model::Initial::zeros: EXPECT_EQ(deviation, 0) << tensor.name; break;
      case model::Initial::ones: EXPECT_EQ(deviation, 1) << tensor.name; break;
      // The smallest matrix has 147,456 numbers: 2 % is ten deviations of their deviation.
      default: EXPECT_NEAR(deviation / config.init_std, 1, 0.02) << tensor.name;
    }
  }
}

}  // namespace
}  // namespace spillway::bench::synthetic_training_test
