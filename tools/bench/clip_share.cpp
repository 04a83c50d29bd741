#include "tools/bench/clip_share.hpp"

#include <algorithm>
#include <functional>

#include "runtime/base/error.hpp"

namespace spillway::bench {

double limit_that_clips(std::vector<double> norms, std::uint64_t clipped) {
  check(!norms.empty() && clipped <= norms.size(), ErrorCode::invalid_argument,
        "no limit clips more steps than there are");
  std::ranges::sort(norms, std::greater<>());
  if (clipped == 0) return 2 * norms.front();
  if (clipped == norms.size()) return norms.back() / 2;
  return (norms[clipped - 1] + norms[clipped]) / 2;
}

}  // namespace spillway::bench
