#include "runtime/engine/report/running_median.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/support/environment.hpp"

namespace spillway::engine::running_median_test {
namespace {

TEST(RunningMedian, IsTheMiddleOfAllThatWasAddedAtEveryInstant) {
  const auto seed = test_support::test_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  RunningMedian median;
  EXPECT_EQ(median.value(), 0);
  std::vector<double> values;
  for (int i = 0; i < 500; ++i) {
    // Few distinct values, so that equal ones meet.
    const double value = std::uniform_int_distribution<int>(0, 40)(random);
    median.add(value);
    values.insert(std::upper_bound(values.begin(), values.end(), value), value);
    ASSERT_EQ(median.count(), values.size());
    ASSERT_EQ(median.value(), values[values.size() / 2]) << "after " << values.size();
  }
}

}  // namespace
}  // namespace spillway::engine::running_median_test
