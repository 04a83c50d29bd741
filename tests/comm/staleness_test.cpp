// Every order of pushes that a bound allows is walked through, and compared with a search for an
// order in which the workers that are left push in time.
#include "comm/baselines/staleness.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace spillway::comm::staleness_test {
namespace {

/// The header's account of a session, in the plainest way.
struct Session {
  std::uint32_t bound;
  std::uint32_t applied = 0;
  std::vector<std::uint32_t> pulled;
  std::vector<std::uint32_t> left;

  void push(std::size_t worker) {
    pulled[worker] = ++applied;
    --left[worker];
  }
  /// Returns whether the workers from whom a push is to come have an order without one that is
  /// staler than the bound. It tries them all.
  [[nodiscard]] bool can_be_met(std::vector<bool> has_pushed, std::uint32_t pushes) const {
    bool all = true;
    for (std::size_t next = 0; next < pulled.size(); ++next) {
      if (has_pushed[next] || left[next] == 0) continue;
      all = false;
      if (applied + pushes - pulled[next] > bound) continue;
      std::vector<bool> then = has_pushed;
      then[next] = true;
      if (can_be_met(then, pushes + 1)) return true;
    }
    return all;
  }
  [[nodiscard]] bool may_push(std::size_t worker) const {
    if (left[worker] == 0) return false;
    Session then = *this;
    then.push(worker);
    std::vector<bool> has_pushed(pulled.size(), false);
    has_pushed[worker] = true;  // its next push has the newest values and is the last
    return then.can_be_met(has_pushed, 0);
  }
};

/// Returns how many pushes it has seen.
int walk(const Staleness& staleness, const Session& session) {
  int seen = 0;
  bool somebody = false;
  for (std::size_t worker = 0; worker < session.left.size(); ++worker) {
    EXPECT_EQ(staleness.left(worker), session.left[worker]);
    const bool may_push = staleness.may_push(worker);
    EXPECT_EQ(may_push, session.may_push(worker)) << worker << " after " << session.applied;
    if (!may_push) continue;
    somebody = true;
    Staleness next = staleness;
    Session then = session;
    const std::uint32_t expected = session.applied - session.pulled[worker];
    EXPECT_EQ(next.push(worker), expected);
    EXPECT_LE(expected, session.bound);
    then.push(worker);
    seen += 1 + walk(next, then);
    if (testing::Test::HasFailure()) return seen;
  }
  EXPECT_EQ(staleness.is_over(), !somebody);
  return seen;
}

TEST(Staleness, LetsAWorkerPushExactlyIfTheOthersStillCanInTime) {
  for (const std::uint32_t workers : {1U, 2U, 3U, 4U}) {
    for (std::uint32_t bound = workers - 1; bound < workers + 2; ++bound) {
      const std::uint32_t pushes = workers == 4 ? 2 : 4;
      SCOPED_TRACE(fmt::format("{} workers, bound {}", workers, bound));
      Staleness staleness(workers, bound);
      staleness.begin(pushes);
      const Session session{.bound = bound,
                            .pulled = std::vector<std::uint32_t>(workers),
                            .left = std::vector<std::uint32_t>(workers, pushes)};
      EXPECT_GE(walk(staleness, session), static_cast<int>(workers * pushes));
    }
  }
}

TEST(Staleness, BeginsEachSessionWithNewValues) {
  Staleness staleness(2, 1);
  for (int session = 0; session < 2; ++session) {
    staleness.begin(1);
    EXPECT_EQ(staleness.push(1), 0);
    EXPECT_EQ(staleness.push(0), 1);
    EXPECT_TRUE(staleness.is_over());
  }
}

}  // namespace
}  // namespace spillway::comm::staleness_test
