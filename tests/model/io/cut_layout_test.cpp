// The layout of a model in tiles: what is where, where its values come from, and that files know
// nothing of it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "runtime/base/error.hpp"
#include "runtime/model/layout_view.hpp"
#include "tests/model/io/families.hpp"
#include "tests/model/io/scratch.hpp"
#include "tests/model/io/small_checkpoint.hpp"

namespace spillway::model::cut_layout_test {
namespace {

using testing::Blocks;
using testing::read_all;
using testing::small_gpt2;
using testing::small_llama;

ModelConfig biased_llama() {
  ModelConfig config = small_llama(Family::llama);
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = true;
  return config;
}

/// One row at a time, some rows, several matrices together, whole layers.
constexpr std::uint64_t kTiles[] = {48, 500, 2048, 1U << 20};

/// All values of each tensor, from its parts in order.
std::map<std::string, std::vector<float>> by_name(const ModelLayout& layout, const Blocks& blocks) {
  std::map<std::string, std::vector<float>> tensors;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    for (const ParameterTensor& tensor : layout.blocks[b].tensors) {
      const auto first = blocks[b].begin() + static_cast<std::ptrdiff_t>(tensor.first.value());
      auto& values = tensors[tensor.name];
      EXPECT_EQ(values.size(), tensor.skipped.value()) << tensor.name;
      values.insert(values.end(), first, first + static_cast<std::ptrdiff_t>(tensor.count.value()));
    }
  }
  return tensors;
}

TEST(CutLayout, HoldsEveryRowOnceInTilesOfTheGivenSize) {
  const ModelConfig config = biased_llama();
  const ModelLayout whole = make_layout(config);
  for (const std::uint64_t tile : kTiles) {
    SCOPED_TRACE(tile);
    const ModelLayout cut = make_layout(config, tile);
    EXPECT_EQ(cut.operator_tile, tile);
    EXPECT_EQ(cut.parameters(), whole.parameters());
    std::map<std::string, std::uint64_t> held;
    std::uint32_t layer = 0;
    for (std::size_t b = 0; b < cut.blocks.size(); ++b) {
      const BlockLayout& block = cut.blocks[b];
      ElementCount next;
      for (const ParameterTensor& tensor : block.tensors) {
        EXPECT_EQ(tensor.is_vector, b == 0) << tensor.name;
        EXPECT_EQ(tensor.first, next) << tensor.name;
        EXPECT_EQ(tensor.skipped.value(), held[tensor.name]) << "rows in order";
        EXPECT_EQ(tensor.count.value() % tensor.shape.back(), 0U) << "whole rows";
        held[tensor.name] += tensor.count.value();
        next += tensor.count;
      }
      EXPECT_EQ(block.parameters, next);
      EXPECT_EQ(block.padded_parameters.value(), round_up(next.value(), kLeafParameters));
      if (b == 0) continue;
      EXPECT_LE(next.value(), tile);
      EXPECT_GE(block.layer, layer);
      EXPECT_LE(block.layer, layer + 1);
      layer = block.layer;
    }
    EXPECT_EQ(layer, config.layers + 1);
    for (const BlockLayout& block : whole.blocks) {
      for (const ParameterTensor& tensor : block.tensors) {
        EXPECT_EQ(held[tensor.name], tensor.elements().value()) << tensor.name;
      }
    }
  }
}

TEST(CutLayout, CutsEveryLayerAlike) {
  const ModelLayout cut = make_layout(biased_llama(), 500);
  std::map<std::uint32_t, std::vector<std::uint64_t>> sizes;
  for (const BlockLayout& block : cut.blocks) {
    sizes[block.layer].push_back(block.parameters.value());
  }
  EXPECT_EQ(sizes[1], sizes[2]);
  EXPECT_GT(sizes[1].size(), 7U) << "matrices are cut";
}

TEST(CutLayout, CutsLargeMatricesAtEvenRows) {
  ModelConfig config = small_llama(Family::llama);
  config.vocab_size = 1000;
  const ModelLayout cut = make_layout(config, 32 * 200);  // 200 rows fit, 192 are even
  EXPECT_EQ(cut.blocks[1].parameters.value(), 32U * 192);
  EXPECT_EQ(cut.blocks[6].parameters.value(), 32U * (1000 - 5 * 192));
}

TEST(CutLayout, RefusesWhatItCannotCutAndSaysWhatItCould) {
  const auto message = [](const ModelConfig& config, std::uint64_t tile) -> std::string {
    try {
      static_cast<void>(make_layout(config, tile));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message(small_gpt2(), 4096), ::testing::HasSubstr("gpt2"));
  EXPECT_THAT(message(small_llama(Family::llama), 47), ::testing::HasSubstr("48 parameters"));
  EXPECT_EQ(message(small_llama(Family::llama), 48), "");
}

TEST(CutLayout, StartsFromTheRandomNumbersOfTheWholeModel) {
  const ModelConfig config = biased_llama();
  const ModelLayout whole = make_layout(config);
  const auto expected = by_name(whole, read_all(RandomInitializer(config, whole, 5), whole));
  for (const std::uint64_t tile : kTiles) {
    const ModelLayout cut = make_layout(config, tile);
    EXPECT_EQ(by_name(cut, read_all(RandomInitializer(config, cut, 5), cut)), expected) << tile;
  }
}

TEST(CutLayout, IsSeenAsTheWholeModelAndTheOtherWayRound) {
  const ModelConfig config = biased_llama();
  const ModelLayout whole = make_layout(config);
  const RandomInitializer values(config, whole, 5);
  for (const std::uint64_t tile : kTiles) {
    const ModelLayout cut = make_layout(config, tile);
    const RandomInitializer cut_values(config, cut, 5);
    EXPECT_EQ(read_all(LayoutView(cut_values, cut, whole), whole), read_all(values, whole));
    EXPECT_EQ(read_all(LayoutView(values, whole, cut), cut), read_all(cut_values, cut));
    std::vector<float> part(100);
    std::vector<float> expected(100);
    LayoutView(cut_values, cut, whole).read(BlockIndex{1}, ElementCount{1000}, part);
    values.read(BlockIndex{1}, ElementCount{1000}, expected);
    EXPECT_EQ(part, expected) << "from the middle";
  }
}

TEST(CutLayout, ReadsAndWritesTheFilesOfTheWholeModel) {
  for (const bool tied : {false, true}) {
    const testing::Scratch scratch;
    ModelConfig config = biased_llama();
    config.tied_head = tied;
    const ModelLayout whole = make_layout(config);
    const Blocks values = testing::random_blocks(config, whole);
    testing::save(scratch.path() / "whole", config, values);
    for (const std::uint64_t tile : kTiles) {
      SCOPED_TRACE(::testing::Message() << tile << (tied ? " tied" : ""));
      const ModelLayout cut = make_layout(config, tile);
      const Blocks read = read_all(CheckpointReader(scratch.path() / "whole", config, cut), cut);
      EXPECT_EQ(by_name(cut, read), by_name(whole, values));
      for (const Bytes shard : {SaveOptions().max_shard, Bytes{3000}}) {
        const auto path = scratch.path() / fmt::format("{}-{}", tile, shard.value());
        CheckpointWriter writer(path, config, cut, {.max_shard = shard});
        testing::append_all(writer, read);
        writer.finish();
        EXPECT_EQ(testing::load(path), values) << "as a whole model";
      }
    }
  }
}

}  // namespace
}  // namespace spillway::model::cut_layout_test
