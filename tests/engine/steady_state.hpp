// What a step does once a run is under way.
#pragma once

#include <gtest/gtest.h>

#include "tests/engine/training_harness.hpp"
#include "tests/support/allocation_counter.hpp"

namespace spillway::engine {

/// After three steps of a new run, five that allocate nothing and open nothing.
inline void expect_steady(TrainingHarness& harness, const config::TrainOptions& options) {
  const auto trainer = harness.make(options, harness.new_run());
  const data::Sampler sampler = harness.sampler(options);
  for (int i = 0; i < 3; ++i) trainer->step(harness.tokens(), sampler);
  const test_support::AllocationCounter counter;
  for (int i = 0; i < 5; ++i) trainer->step(harness.tokens(), sampler);
  EXPECT_EQ(counter.allocations(), 0);
  EXPECT_EQ(counter.opens(), 0);
}

}  // namespace spillway::engine
