#include "runtime/model/initialize.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "tests/model/io/families.hpp"

namespace spillway::model::initialize_test {
namespace {

using testing::all_families;
using testing::small_gpt2;

std::vector<float> read_block(const RandomInitializer& initializer, const ModelLayout& layout,
                              std::uint32_t block) {
  std::vector<float> values(layout.blocks[block].padded_parameters.value());
  initializer.read(BlockIndex{block}, ElementCount{0}, values);
  return values;
}

TEST(RandomInitializer, AgreesWithTheCLibraryToTheLastDigits) {
  double worst = 0;
  for (std::uint64_t i = 0; i < 100000; ++i) {
    const RandomBlock bits = random_block(7, {.stream = 1, .index = i});
    const auto ours = portable_normal_pair(bits);
    const auto theirs = normal_pair(bits);
    for (std::size_t k = 0; k < 2; ++k) {
      worst = std::max(worst, std::abs(ours[k] - theirs[k]) / std::max(1.0, std::abs(theirs[k])));
    }
  }
  // The library's angle 2 pi u is off by up to 7e-16 (two roundings), times a radius of up to 8.57.
  EXPECT_LT(worst, 7e-15);
}

TEST(RandomInitializer, StaysFiniteAtTheEndsOfTheUniformRange) {
  for (const RandomBlock bits : {RandomBlock{0, 0, 0, 0}, RandomBlock{~0U, ~0U, ~0U, ~0U},
                                 RandomBlock{~0U, ~0U, 0, 0}, RandomBlock{0, 0, ~0U, ~0U}}) {
    for (const double value : portable_normal_pair(bits)) {
      EXPECT_TRUE(std::isfinite(value));
      EXPECT_LE(std::abs(value), 8.6);
    }
  }
}

TEST(RandomInitializer, DoesNotDependOnHowABlockIsCut) {
  for (const auto& [name, config] : all_families()) {
    SCOPED_TRACE(name);
    const ModelLayout layout = make_layout(config);
    const RandomInitializer initializer(config, layout, 42);
    for (std::uint32_t block = 0; block < layout.blocks.size(); ++block) {
      const std::vector<float> whole = read_block(initializer, layout, block);
      std::vector<float> pieces(whole.size(), -1.0F);
      std::size_t first = 0;
      for (std::size_t size = 1; first < pieces.size(); size = size * 3 % 1013 + 1) {
        const auto part = std::span(pieces).subspan(first, std::min(size, pieces.size() - first));
        initializer.read(BlockIndex{block}, ElementCount{first}, part);
        first += part.size();
      }
      EXPECT_EQ(pieces, whole);
    }
  }
}

TEST(RandomInitializer, ClearsTheRowOfThePaddingToken) {
  ModelConfig config = testing::small_llama(Family::llama);
  config.padding_token = 2;
  const ModelLayout layout = make_layout(config);
  const std::vector<float> values = read_block(RandomInitializer(config, layout, 42), layout, 0);
  config.padding_token.reset();
  std::vector<float> expected = read_block(RandomInitializer(config, layout, 42), layout, 0);
  const std::uint64_t row = 2 * std::uint64_t{config.width};
  EXPECT_NE(expected[row], 0.0F);
  std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(row), config.width, 0.0F);
  EXPECT_EQ(values, expected);
}

TEST(RandomInitializer, GivesEachTensorItsDistribution) {
  ModelConfig config = small_gpt2();
  config.width = 128;
  config.head_dim = 32;
  config.ffn_width = 512;
  config.layers = 8;
  const ModelLayout layout = make_layout(config);
  const RandomInitializer initializer(config, layout, 3);
  const std::vector<float> values = read_block(initializer, layout, 3);
  for (const ParameterTensor& tensor : layout.blocks[3].tensors) {
    double sum = 0;
    double squares = 0;
    for (std::uint64_t i = 0; i < tensor.count.value(); ++i) {
      const double value = values[tensor.first.value() + i];
      sum += value;
      squares += value * value;
    }
    const auto count = static_cast<double>(tensor.count.value());
    double mean = 0;
    double deviation = 0;
    if (tensor.initial == Initial::normal) deviation = 0.02;
    if (tensor.initial == Initial::scaled_normal) deviation = 0.02 / 4;
    if (tensor.initial == Initial::ones) mean = 1;
    // Five standard errors of mean and deviation.
    EXPECT_NEAR(sum / count, mean, 5 * deviation / std::sqrt(count)) << tensor.name;
    EXPECT_NEAR(std::sqrt(std::max(0.0, squares / count - mean * mean)), deviation,
                5 * deviation / std::sqrt(2 * count))
        << tensor.name;
  }
}

TEST(RandomInitializer, SeparatesSeedsTensorsAndBlocksAndZeroesPadding) {
  const ModelConfig config = small_gpt2();
  const ModelLayout layout = make_layout(config);
  const RandomInitializer one(config, layout, 1);
  const RandomInitializer two(config, layout, 2);
  const std::vector<float> values = read_block(one, layout, 1);
  EXPECT_NE(values, read_block(two, layout, 1));
  EXPECT_NE(values[0], read_block(one, layout, 2)[0]);
  EXPECT_NE(values[0], values[layout.blocks[1].tensors[1].first.value()]);
  for (std::size_t i = layout.blocks[1].parameters.value(); i < values.size(); ++i) {
    ASSERT_EQ(values[i], 0.0F);
  }
}

TEST(RandomInitializer, GivesTheseBitsOnEveryMachine) {
  // Recorded once; a change here breaks the resume and comparison of runs that start at random.
  const ModelConfig config = small_gpt2();
  const ModelLayout layout = make_layout(config);
  const RandomInitializer initializer(config, layout, 1234);
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  for (std::uint32_t block = 0; block < layout.blocks.size(); ++block) {
    std::vector<float> whole(layout.blocks[block].padded_parameters.value());
    initialize(config, layout, BlockIndex{block}, 1234, whole);
    EXPECT_EQ(whole, read_block(initializer, layout, block));
    for (const float value : whole) {
      hash = (hash ^ std::bit_cast<std::uint32_t>(value)) * 0x100000001b3ULL;
    }
  }
  EXPECT_EQ(hash, 0xc7cf69a2d86e4929ULL) << "got " << std::hex << hash;
}

}  // namespace
}  // namespace spillway::model::initialize_test
