// Trainers and steps for which the system refuses memory.
#include "runtime/base/error.hpp"
#include "tests/engine/embedded_fixture.hpp"
#include "tests/support/allocation_counter.hpp"

namespace spillway::engine::embedded_allocation_test {
namespace {

using test_support::AllocationCounter;
using test_support::FailingAllocation;

bool steps(EmbeddedTrainer& trainer) {
  try {
    trainer.step({.max_norm = 1});
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

TEST_F(EmbeddedTrainerTest, AStepThatLacksMemoryIsMadeAgainOrNeverMore) {
  if (!AllocationCounter::works()) GTEST_SKIP() << "a sanitizer owns operator new";
  EmbeddedOptions options = options_for();
  options.missing_gradient = MissingGradient::skip;
  const auto reference = make(options);
  for (const std::size_t parameter : {1U, 2U}) give(*reference, parameter, 1);
  ASSERT_TRUE(steps(*reference));
  int again = 0;
  for (int successes = 0;; ++successes) {
    SCOPED_TRACE(successes);
    const auto trainer = make(options);
    for (const std::size_t parameter : {1U, 2U}) give(*trainer, parameter, 1);
    FailingAllocation fault(successes);
    fault.watch(true);
    const bool first = steps(*trainer);
    fault.watch(false);
    if (!fault.has_failed()) break;
    if (!first && !steps(*trainer)) continue;  // it was in the middle of the update
    ++again;
    EXPECT_EQ(trainer->steps(), 1U);
    EXPECT_EQ(state(*trainer), state(*reference));
    for (std::uint32_t i = 0; i < trainer->size(); ++i) {
      EXPECT_EQ(trainer->updates(i), reference->updates(i));
    }
  }
  EXPECT_GT(again, 5);
}

TEST_F(EmbeddedTrainerTest, ATrainerThatLacksMemoryIsNotMadeAndTheNextOneIs) {
  if (!AllocationCounter::works()) GTEST_SKIP() << "a sanitizer owns operator new";
  const EmbeddedOptions options = options_for();
  const auto starts = model_.starts(options.dtype);
  const std::vector<EmbeddedParameter> parameters = model_.parameters(starts);
  int refused = 0;
  for (int successes = 0;; ++successes) {
    SCOPED_TRACE(successes);
    FailingAllocation fault(successes);
    fault.watch(true);
    try {
      const EmbeddedTrainer trainer(options, parameters);
      fault.watch(false);
    } catch (const std::bad_alloc&) {
      ++refused;
    }
    if (!fault.has_failed()) break;
  }
  EXPECT_GT(refused, 500);
  EXPECT_EQ(train(*make(options), 1, 2), train(*make(options), 1, 2));
}

}  // namespace
}  // namespace spillway::engine::embedded_allocation_test
