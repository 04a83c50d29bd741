#include "runtime/data/sampler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "tests/data/scratch.hpp"

namespace spillway::data::sampler_test {
namespace {

using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::uint64_t> epoch_of(const Sampler& sampler, std::uint64_t epoch) {
  std::vector<std::uint64_t> firsts(sampler.windows());
  for (std::uint64_t i = 0; i < firsts.size(); ++i) {
    firsts[i] = sampler.first_token(epoch * sampler.windows() + i);
  }
  return firsts;
}

std::vector<std::uint64_t> every_window(std::uint64_t windows, std::uint32_t context) {
  std::vector<std::uint64_t> firsts(windows);
  for (std::uint64_t i = 0; i < windows; ++i) firsts[i] = i * context;
  return firsts;
}

TEST(Sampler, LeavesRoomForTheLastTarget) {
  EXPECT_EQ(Sampler(11, 10, Order::sequential, 0).windows(), 1U);
  EXPECT_EQ(Sampler(20, 10, Order::sequential, 0).windows(), 1U);
  EXPECT_EQ(Sampler(21, 10, Order::sequential, 0).windows(), 2U);
}

TEST(Sampler, RefusesDataThatHoldsNoWindow) {
  const Error error = error_of([] { Sampler(10, 10, Order::shuffled, 0); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), HasSubstr("10 tokens do not hold one window"));
  EXPECT_EQ(error_of([] { Sampler(10, 0, Order::shuffled, 0); }).code(),
            ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([] { Sampler(0, 4, Order::shuffled, 0); }).code(),
            ErrorCode::invalid_argument);
}

TEST(Sampler, SequentialFollowsTheFileAndStartsAgain) {
  const Sampler sampler(31, 10, Order::sequential, 7);
  std::vector<std::uint64_t> firsts;
  for (std::uint64_t cursor = 0; cursor < 7; ++cursor) {
    firsts.push_back(sampler.first_token(cursor));
  }
  EXPECT_THAT(firsts, ElementsAre(0, 10, 20, 0, 10, 20, 0));
}

TEST(Sampler, ShuffledVisitsEveryWindowOnceAnEpoch) {
  for (std::uint64_t windows = 1; windows <= 300; ++windows) {
    const Sampler sampler(windows * 3 + 1, 3, Order::shuffled, windows);
    ASSERT_EQ(sampler.windows(), windows);
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<std::uint64_t> firsts = epoch_of(sampler, epoch);
      std::sort(firsts.begin(), firsts.end());
      ASSERT_EQ(firsts, every_window(windows, 3)) << windows << " windows, epoch " << epoch;
    }
  }
}

TEST(Sampler, ShuffledIsAPermutationForAnySizeAndSeed) {
  std::mt19937_64 random(test::test_seed());
  for (int round = 0; round < 20; ++round) {
    const std::uint64_t windows = 1 + random() % 100000;
    const auto context = static_cast<std::uint32_t>(1 + random() % 2048);
    const Sampler sampler(windows * context + 1, context, Order::shuffled, random());
    std::vector<std::uint64_t> firsts = epoch_of(sampler, random() % 1000000);
    std::sort(firsts.begin(), firsts.end());
    ASSERT_EQ(firsts, every_window(windows, context)) << windows;
  }
}

TEST(Sampler, EpochsAndSeedsHaveDifferentOrders) {
  const Sampler one(1001, 1, Order::shuffled, 1);
  const Sampler two(1001, 1, Order::shuffled, 2);
  const std::vector<std::vector<std::uint64_t>> orders{epoch_of(one, 0), epoch_of(one, 1),
                                                       epoch_of(one, 2), epoch_of(two, 0),
                                                       epoch_of(two, 1), epoch_of(two, 2)};
  for (std::size_t a = 0; a < orders.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      // Two independent permutations agree in about 1 place; 12 would be a chance of 1e-9.
      const std::size_t same =
          std::inner_product(orders[a].begin(), orders[a].end(), orders[b].begin(), std::size_t{0},
                             std::plus<>{}, [](auto x, auto y) { return x == y ? 1U : 0U; });
      EXPECT_LT(same, 12U) << a << " and " << b;
    }
  }
}

TEST(Sampler, EveryPlaceOfTheEpochDrawsEveryPartOfTheFile) {
  // Chi-square of (place, window) over many epochs, 16 x 16 cells: 225 degrees of freedom, so mean
  // 225 and deviation 21; 5 deviations. The seed is fixed, so the outcome is, too.
  constexpr std::uint64_t kEpochs = 4000;
  const Sampler sampler(16 + 1, 1, Order::shuffled, 99);
  std::vector<double> cells(256);
  for (std::uint64_t cursor = 0; cursor < kEpochs * 16; ++cursor) {
    cells[(cursor % 16) * 16 + sampler.first_token(cursor)] += 1;
  }
  double chi_square = 0;
  for (const double count : cells) {
    const double expected = kEpochs / 16.0;
    chi_square += (count - expected) * (count - expected) / expected;
  }
  EXPECT_LT(chi_square, 225 + 5 * 21.2);
  EXPECT_GT(chi_square, 225 - 5 * 21.2);
}

TEST(Sampler, ShuffledBreaksUpNeighbours) {
  const Sampler sampler(100001, 1, Order::shuffled, 5);
  const std::vector<std::uint64_t> firsts = epoch_of(sampler, 0);
  double distance = 0;
  for (std::size_t i = 1; i < firsts.size(); ++i) {
    distance += std::abs(static_cast<double>(firsts[i]) - static_cast<double>(firsts[i - 1]));
  }
  // Two random places of n are n / 3 apart on average; the deviation of the mean is 0.24 / sqrt(n).
  EXPECT_NEAR(distance / 100000 / 100000, 1.0 / 3, 0.004);
}

TEST(Sampler, ResumesFromTheCursorAlone) {
  const Sampler first(5001, 7, Order::shuffled, 42);
  const Sampler resumed(5001, 7, Order::shuffled, 42);
  for (std::uint64_t cursor = 3 * first.windows() - 5; cursor < 3 * first.windows() + 5; ++cursor) {
    EXPECT_EQ(resumed.first_token(cursor), first.first_token(cursor));
  }
}

TEST(Sampler, ReachesTheEndsOfHugeFilesAndCursors) {
  const std::uint64_t tokens = (1ULL << 62) + 1;
  const Sampler sampler(tokens, 1, Order::shuffled, 3);
  EXPECT_LT(sampler.first_token(0), tokens - 1);
  EXPECT_LT(sampler.first_token(~0ULL), tokens - 1);
  const Sampler largest(~0ULL, 1, Order::shuffled, 3);
  EXPECT_LT(largest.first_token(~0ULL), ~0ULL - 1);
}

// The order is part of a run's mathematics: changing it would break the resume of every run there
// is.
TEST(Sampler, KeepsTheOrderThatRunsWereStartedWith) {
  const Sampler sampler(10 * 64 + 1, 64, Order::shuffled, 1234);
  EXPECT_THAT(epoch_of(sampler, 0), ElementsAre(384, 128, 512, 64, 192, 448, 320, 576, 0, 256));
  EXPECT_THAT(epoch_of(sampler, 1), ElementsAre(320, 448, 192, 128, 0, 512, 256, 576, 64, 384));
}

}  // namespace
}  // namespace spillway::data::sampler_test
