// That a tile which is summed while it is updated has the bits of the update alone, and the
// checksums of what it was and of what it is. The checksums here are built from XXH3 itself.
#include "runtime/engine/step/tile_update.hpp"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <random>

#include "cpu_adam/state_format.hpp"
#include "runtime/base/state_format.hpp"

namespace spillway::engine::tile_update_test {
namespace {

constexpr std::size_t kPage = 4096;

/// As docs/formats.md says: of the one page, or of the pages' own in groups of 64.
std::uint64_t expected_checksum(std::span<const std::byte> bytes) {
  std::vector<std::uint64_t> pages;
  for (std::size_t at = 0; at < bytes.size(); at += kPage) {
    pages.push_back(XXH3_64bits(bytes.data() + at, kPage));
  }
  if (pages.size() == 1) return pages[0];
  std::uint64_t checksum = 0;
  for (std::size_t at = 0; at < pages.size(); at += 64) {
    const std::uint64_t group =
        XXH3_64bits(&pages[at], std::min<std::size_t>(64, pages.size() - at) * 8);
    const std::uint64_t both[] = {checksum, group};
    checksum = XXH3_64bits(both, 16);
  }
  return checksum;
}

struct Tile {
  Tile(StateFormat format, std::size_t count, std::uint64_t seed)
      : layout(cpu_adam::make_layout(format, count)),
        state(layout.bytes),
        parameters(2 * count),
        gradient(2 * count) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> master(count), m(count), v(count), g(count);
    for (std::size_t i = 0; i < count; ++i) {
      master[i] = normal(random);
      m[i] = 0.1F * normal(random);
      v[i] = std::abs(normal(random));
      g[i] = normal(random);
    }
    cpu_adam::pack_state(layout, {.master = master, .m = m, .v = v}, state.data(),
                         parameters.data());
    cpu_adam::round_gradient(cpu_adam::Isa::scalar, DType::bf16, g.data(), gradient.data(), count);
  }

  [[nodiscard]] cpu_adam::UpdateRange range() {
    cpu_adam::UpdateRange range = cpu_adam::tile_range(
        layout, state.data(), state.data(), gradient.data(), parameters.data(), parameters.data());
    range.index = 3 * 4096;
    range.block = 2;
    return range;
  }

  cpu_adam::StateLayout layout;
  std::vector<std::byte> state, parameters, gradient;
};

class TileUpdateTest : public ::testing::TestWithParam<StateFormat> {
 protected:
  /// Two groups, whose boundary lies inside a leaf.
  [[nodiscard]] static std::array<cpu_adam::ParameterGroup, 2> groups() {
    return {
        {{.end = 3 * 4096 + 1000, .scalars = cpu_adam::make_scalars({.weight_decay = 0.1}, 3, 1)},
         {.end = 1U << 30, .scalars = cpu_adam::make_scalars({}, 3, 1)}}};
  }
  [[nodiscard]] static const cpu_adam::Kernel& kernel() {
    return cpu_adam::find_kernel(cpu_adam::best_isa(), DType::bf16, DType::bf16, GetParam());
  }
  /// All of `tile` by so many threads.
  [[nodiscard]] static TileChecksums run(Tile& tile, std::size_t threads, bool with_parameters) {
    cpu_adam::WorkerPool workers({.threads = threads});
    TileUpdate update(workers, Bytes{tile.layout.bytes});
    const auto both = groups();
    TileChecksums sums;
    workers
        .submit([&] {
          sums = update.run({.kernel = kernel(),
                             .groups = both,
                             .range = tile.range(),
                             .layout = tile.layout,
                             .state = tile.state,
                             .parameters = with_parameters
                                               ? std::span<const std::byte>(tile.parameters)
                                               : std::span<const std::byte>{}});
        })
        .wait();
    return sums;
  }
};

TEST_P(TileUpdateTest, GivesTheUpdatesBitsAndTheChecksumsOfBothSides) {
  for (const std::size_t leaves : {1U, 3U, 9U, 137U}) {
    for (const std::size_t threads : {1U, 3U}) {
      Tile tile(GetParam(), leaves * 4096, leaves);
      Tile alone = tile;
      const std::uint64_t before = expected_checksum(tile.state);
      const TileChecksums sums = run(tile, threads, true);
      cpu_adam::update(kernel(), groups(), alone.range());
      EXPECT_TRUE(tile.state == alone.state) << leaves;
      EXPECT_TRUE(tile.parameters == alone.parameters) << leaves;
      EXPECT_EQ(sums.before, before) << leaves;
      EXPECT_EQ(sums.state, expected_checksum(alone.state)) << leaves;
      EXPECT_EQ(sums.parameters, expected_checksum(alone.parameters)) << leaves;
      EXPECT_NE(sums.state, sums.before);
    }
  }
}

TEST_P(TileUpdateTest, SumsGapsBetweenArraysOfAWholeTileToo) {
  Tile tile(GetParam(), std::size_t{1} << 20, 5);
  const std::uint64_t before = expected_checksum(tile.state);
  const TileChecksums sums = run(tile, 2, false);
  EXPECT_EQ(sums.before, before);
  EXPECT_EQ(sums.state, expected_checksum(tile.state));
  EXPECT_EQ(sums.parameters, 0U);
}

TEST_P(TileUpdateTest, SeesAFlippedBitOfEveryPage) {
  const Tile whole(GetParam(), 5 * 4096, 9);
  const std::uint64_t before = expected_checksum(whole.state);
  for (std::size_t page = 0; page < whole.state.size(); page += kPage) {
    Tile damaged = whole;
    damaged.state[page + page % 4093] ^= std::byte{4};
    EXPECT_NE(run(damaged, 1, false).before, before) << page;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, TileUpdateTest,
                         ::testing::Values(StateFormat::fp32, StateFormat::split, StateFormat::bf16,
                                           StateFormat::int8),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

}  // namespace
}  // namespace spillway::engine::tile_update_test
