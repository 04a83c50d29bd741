// Stochastic rounding draws for each parameter of each block and step anew. Rounded with one draw,
// two blocks would carry the same errors in the same places.
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "runtime/engine/state/state_slots.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine::rounding_key_test {
namespace {

/// Adam's m of every parameter of every block after `steps` steps, as it lies in the swap files.
template <class Element>
std::vector<std::vector<Element>> moments(StateFormat format, std::uint64_t seed) {
  TrainingHarness harness(tiny_llama());
  config::TrainOptions options = tiny_options();
  options.compute = DType::bf16;
  options.state_format = format;
  options.seed = seed;
  options.order = data::Order::sequential;  // whatever the seed
  const std::filesystem::path run = harness.new_run();
  plan::Workload workload;
  {
    const auto trainer = harness.make(options, run);
    Outcome ignored;
    harness.steps(*trainer, options, 1, ignored);
    trainer->cycle().commit();
    workload = trainer->engine().workload();
  }
  nvme_swap::StoreOptions where;
  where.directories = state_directories(options, run);
  const auto store = nvme_swap::TileStore::open(where);
  const StateSlots slots(
      format, plan::make_tiles(workload, ElementCount{options.tile_parameters}, /*replica=*/0),
      workload.blocks.size());
  std::vector<std::vector<Element>> result(workload.blocks.size());
  for (std::uint32_t tile = 0; tile < slots.tiles().size(); ++tile) {
    const cpu_adam::StateLayout& layout = slots.layout(tile);
    const std::unique_ptr<std::byte, decltype(&std::free)> slot(
        static_cast<std::byte*>(std::aligned_alloc(4096, layout.disk_bytes)), &std::free);
    slots.load(*store, tile, {slot.get(), layout.disk_bytes});
    auto& of_block = result[slots.tiles()[tile].block];
    const std::size_t before = of_block.size();
    of_block.resize(before + layout.count);
    std::memcpy(of_block.data() + before, slot.get() + layout.m, layout.count * sizeof(Element));
  }
  return result;
}

struct Rounding {
  std::uint32_t rest;  ///< what lies below the 16 bits that are kept
  bool up;
};

std::vector<Rounding> roundings(const std::vector<float>& exact,
                                const std::vector<std::uint16_t>& rounded) {
  std::vector<Rounding> result;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(exact[i]);
    const std::uint32_t kept = bits >> 16;
    EXPECT_TRUE(rounded[i] == kept || rounded[i] == kept + 1) << "parameter " << i;
    result.push_back({bits & 0xffffU, rounded[i] != kept});
  }
  return result;
}

/// A number r in [0, 2^16) rounds up what has more than 2^16 - r below. So with the same r what is
/// rounded down has less below than what is rounded up; how many parameters contradict that.
std::size_t contradictions(const std::vector<Rounding>& a, const std::vector<Rounding>& b) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i].up == b[i].up) continue;
    const auto& [up, down] = a[i].up ? std::pair(a[i], b[i]) : std::pair(b[i], a[i]);
    if (down.rest >= up.rest) ++count;
  }
  return count;
}

class RoundingKeys : public testing::Test {
 protected:
  RoundingKeys() {
    const auto exact = moments<float>(StateFormat::fp32, 7);
    const auto rounded = moments<std::uint16_t>(StateFormat::bf16, 7);
    for (std::size_t block = 0; block < exact.size(); ++block) {
      blocks_.push_back(roundings(exact[block], rounded[block]));
    }
  }
  std::vector<std::vector<Rounding>> blocks_;
};

TEST_F(RoundingKeys, DifferBetweenBlocks) {
  for (std::size_t a = 0; a < blocks_.size(); ++a) {
    for (std::size_t b = a + 1; b < blocks_.size(); ++b) {
      const std::size_t both = std::min(blocks_[a].size(), blocks_[b].size());
      // Independent draws contradict each other for one parameter in twelve.
      EXPECT_GT(contradictions(blocks_[a], blocks_[b]), both / 24) << "blocks " << a << ", " << b;
    }
  }
}

TEST_F(RoundingKeys, DifferBetweenTilesOfABlock) {
  // A layer has three tiles: parameters that lie at the same place of two of them.
  constexpr std::size_t kTile = 2 * kLeafParameters;
  const std::vector<Rounding>& layer = blocks_[1];
  ASSERT_GT(layer.size(), 2 * kTile);
  const std::vector<Rounding> first(layer.begin(), layer.begin() + kTile);
  const std::vector<Rounding> second(layer.begin() + kTile, layer.begin() + 2 * kTile);
  EXPECT_GT(contradictions(first, second), kTile / 24);
}

}  // namespace
}  // namespace spillway::engine::rounding_key_test
