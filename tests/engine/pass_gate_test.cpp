// Waiting for a pass of a plan, after which the next one begins.
#include "runtime/engine/embedded/passes/pass_gate.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <future>

namespace spillway::engine::pass_gate_test {
namespace {

TEST(PassGate, AWaitEndsWithThePlanThatItSaw) {
  WakeSignal wake;
  PassGate gate(2, Ends::both);
  const std::uint64_t first = gate.close(wake);
  EXPECT_FALSE(gate.has_begun_forward(1, first));
  const Ticket pass = gate.forward({.block = 1});
  EXPECT_TRUE(gate.has_begun_forward(1, first));
  gate.complete_all();
  const std::uint64_t second = gate.close(wake);
  // Whoever was told of the pass and comes now: the plan that runs may never have such a pass.
  std::future<bool> late = std::async(std::launch::async, [&] {
    return gate.wait_for_forward(1, first) && gate.wait_for_backward(0, first);
  });
  const bool ends = late.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  if (!ends) gate.release();
  EXPECT_TRUE(ends);
  EXPECT_TRUE(late.get());
  EXPECT_TRUE(gate.has_begun_forward(1, first));
  EXPECT_FALSE(gate.has_begun_forward(1, second));
}

TEST(PassGate, AWaitForAPlanThatFailsSaysSo) {
  WakeSignal wake;
  PassGate gate(1, Ends::both);
  const std::uint64_t plan = gate.close(wake);
  std::future<bool> waits =
      std::async(std::launch::async, [&] { return gate.wait_for_backward(0, plan); });
  gate.release();
  EXPECT_FALSE(waits.get());
}

}  // namespace
}  // namespace spillway::engine::pass_gate_test
