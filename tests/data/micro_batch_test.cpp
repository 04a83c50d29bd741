#include "runtime/data/micro_batch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "runtime/base/error.hpp"
#include "tests/data/scratch.hpp"

namespace spillway::data::micro_batch_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class MicroBatchTest : public ::testing::Test {
 protected:
  /// Tokens 0, 1, ..., count - 1.
  [[nodiscard]] TokenFile counting_file(std::size_t count) const {
    std::vector<std::uint16_t> tokens(count);
    std::iota(tokens.begin(), tokens.end(), 0);
    return {scratch_.write("tokens.bin", test::packed(tokens)), TokenType::uint16};
  }

  test::Scratch scratch_;
  std::vector<std::int32_t> memory_ = std::vector<std::int32_t>(2 * 3 * 4, 99);
  MicroBatch batch_{.tokens = memory_, .context = 4, .vocab_size = 100};
};

TEST_F(MicroBatchTest, TargetsAreTheNextTokens) {
  const TokenFile file = counting_file(20);
  EXPECT_EQ(batch_.rows(), 3U);
  read_window(file, 5, batch_, 1);
  EXPECT_THAT(batch_.inputs(1), ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(batch_.targets(1), ElementsAre(6, 7, 8, 9));
  EXPECT_THAT(batch_.inputs(0), Each(99));
  EXPECT_THAT(batch_.targets(2), Each(99));
}

TEST_F(MicroBatchTest, WindowsFollowEachOtherAndTheRestHasNoTargets) {
  const TokenFile file = counting_file(12);  // targets of a third window would need a 13th token
  EXPECT_EQ(window_count(file, 4), 2U);
  read_windows(file, 1, batch_);
  EXPECT_THAT(batch_.inputs(0), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(batch_.targets(0), ElementsAre(5, 6, 7, 8));
  for (const std::size_t row : {std::size_t{1}, std::size_t{2}}) {
    EXPECT_THAT(batch_.inputs(row), Each(0));
    EXPECT_THAT(batch_.targets(row), Each(kIgnoredTarget));
  }
}

TEST_F(MicroBatchTest, ATokenOutsideTheVocabularyIsNamed) {
  const TokenFile file = counting_file(20);
  batch_.vocab_size = 7;
  EXPECT_THROW(read_window(file, 4, batch_, 0), Error);
}

}  // namespace
}  // namespace spillway::data::micro_batch_test
