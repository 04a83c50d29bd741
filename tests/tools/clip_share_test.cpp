#include "tools/bench/clip_share.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/base/error.hpp"

namespace spillway::bench::clip_share_test {
namespace {

TEST(ClipShare, TheLimitClipsAsManyStepsAsAsked) {
  const std::vector<double> norms{3, 0.5, 7, 1, 0.001, 5};
  for (std::size_t clipped = 0; clipped <= norms.size(); ++clipped) {
    const double limit = limit_that_clips(norms, clipped);
    EXPECT_GT(limit, 0);
    EXPECT_EQ(std::ranges::count_if(norms, [&](double norm) { return norm > limit; }), clipped);
  }
}

TEST(ClipShare, MoreThanAllIsRefused) {
  EXPECT_THROW(static_cast<void>(limit_that_clips({1, 2}, 3)), Error);
  EXPECT_THROW(static_cast<void>(limit_that_clips({}, 0)), Error);
}

}  // namespace
}  // namespace spillway::bench::clip_share_test
