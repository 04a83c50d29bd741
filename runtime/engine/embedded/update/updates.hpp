// EmbeddedUpdates: the update that a step decides, and how often parameters were updated. One
// thread at a time; no plan may run while `decide` is called or a count is set.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/embedded/plan/layout.hpp"
#include "runtime/engine/training/step_cycle.hpp"

namespace spillway::engine {

class EmbeddedUpdates {
 public:
  /// All arguments outlive this object.
  EmbeddedUpdates(EmbeddedOptions& options, const EmbeddedLayout& layout, StepCycle& cycle);

  // As EmbeddedTrainer describes these

  [[nodiscard]] const cpu_adam::AdamOptions& group(std::uint32_t group) const;
  void set_group(std::uint32_t group, const cpu_adam::AdamOptions& wanted);

  /// Decides the update of a step whose gradients have this norm, the divisor applied: clipped, or
  /// none if the norm after clipping is not finite in fp32. Returns whether there is one.
  /// `skipped`: by parameter, whether it keeps its value and its state; empty: none does.
  bool decide(double norm, const EmbeddedStep& step, const std::vector<bool>& skipped);

  [[nodiscard]] std::uint64_t steps() const { return cycle_.state().step; }
  [[nodiscard]] std::uint64_t updates() const { return cycle_.state().updates; }
  /// Returns how often each parameter was updated.
  [[nodiscard]] std::span<const std::uint64_t> counts() const { return counts_; }
  /// Sets how often all parameters, or one of them, were updated.
  void set_counts(std::uint64_t updates);
  void set_count(std::uint32_t parameter, std::uint64_t updates);

 private:
  [[nodiscard]] cpu_adam::UpdateScalars scalars_of(std::uint32_t group, std::uint64_t updates,
                                                   double scale) const;
  void make_update(double scale, std::span<const std::uint64_t> counts,
                   const std::vector<bool>& skipped, PendingUpdate& update) const;
  void amend_updates();

  EmbeddedOptions& options_;
  const EmbeddedLayout& layout_;
  StepCycle& cycle_;
  std::vector<std::uint64_t> counts_;  ///< by parameter: Adam's t
};

}  // namespace spillway::engine
