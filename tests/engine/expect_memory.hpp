// What a backend holds against what the plan lists, in any test of memory.
#pragma once

#include <gtest/gtest.h>

#include "runtime/engine/training/trainer.hpp"

namespace spillway::engine {

inline void expect_memory_as_planned(const Trainer& trainer) {
  const auto items = plan::memory_items(trainer.engine().workload(), trainer.engine().placement());
  EXPECT_EQ(trainer.engine().backend().usage(offload::MemoryKind::device).current,
            plan::total(items, plan::Tier::device));
  EXPECT_EQ(trainer.engine().backend().usage(offload::MemoryKind::pinned).current,
            plan::total(items, plan::Tier::host));
}

}  // namespace spillway::engine
