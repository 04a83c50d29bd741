// What tests of the step plans of stages share: a model that stages are cut from.
#pragma once

#include "runtime/plan/pipeline/stages.hpp"
#include "tests/plan/expect_correct.hpp"

namespace spillway::plan {

inline constexpr BlockCut kResident{.parameters = Tier::device, .saved = Tier::device};

enum class Head : std::uint8_t { own, tied };

/// Returns a model of `layers` layers between embedding and head, whose layers grow.
inline Workload model_of(std::uint32_t layers, Head kind = Head::own) {
  Workload w = small_workload();
  const BlockShape layer = w.blocks[1];
  const BlockShape head = w.blocks.back();
  w.blocks.resize(1);
  for (std::uint32_t i = 0; i < layers; ++i) {
    w.blocks.push_back(layer);
    w.blocks.back().forward_flops *= 1 + 0.1 * i;
  }
  w.blocks.push_back(head);
  w.compute = DType::bf16;
  if (kind == Head::tied) tie(w);
  return w;
}

}  // namespace spillway::plan
