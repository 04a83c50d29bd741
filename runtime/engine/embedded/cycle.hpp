// EmbeddedCycle: what trains parameters whose passes another framework runs. Nothing else may run
// meanwhile, whichever thread calls.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "runtime/engine/embedded/embedded_plan.hpp"
#include "runtime/engine/embedded/layout.hpp"
#include "runtime/engine/embedded/parameter_state.hpp"
#include "runtime/engine/embedded/use_record.hpp"
#include "runtime/engine/embedded/values.hpp"
#include "runtime/engine/training/step_cycle.hpp"

namespace spillway::engine {

class EmbeddedCycle {
 public:
  /// Allocates everything. `options`: resolved. `layout` and `framework` outlive this object.
  EmbeddedCycle(const EmbeddedOptions& options, const EmbeddedLayout& layout,
                ExternalFramework& framework);

  /// Sets the state of step 0: masters from `source`.
  void initialize(const model::ParameterSource& source) { cycle_.initialize(source); }
  [[nodiscard]] const TrainingState& state() const { return cycle_.state(); }
  [[nodiscard]] EmbeddedValues& values() { return values_; }
  [[nodiscard]] ParameterState& parameters() { return parameters_; }
  [[nodiscard]] UseRecord& record() { return record_; }

  /// Returns what the norm of a parameter's gradient is made of.
  [[nodiscard]] std::span<const double> leaf_sums(const ParameterRange& range);
  void run(EmbeddedPlan plan);
  /// Returns whether the norms of all gradients of a step can be had after that plan.
  [[nodiscard]] bool gathers(EmbeddedPlan plan) const {
    return plan == gathering_plan(layout_.workload);
  }

  /// Decides the update of a step whose gradients have this norm, the divisor applied: clipped, or
  /// none if the norm after clipping is not finite in fp32. Returns whether there is one.
  /// `skipped`: by parameter, whether it keeps its value and its state; empty: none does.
  bool decide(std::span<const cpu_adam::AdamOptions> groups, double norm, const EmbeddedStep& step,
              const std::vector<bool>& skipped);
  /// Whether an update is decided that no plan has applied.
  [[nodiscard]] bool has_pending() const { return cycle_.update().pending; }
  [[nodiscard]] const std::vector<std::uint64_t>& updates() const { return updates_; }
  /// Sets how often all parameters, or one of them, were updated.
  void set_updates(std::uint64_t updates);
  void set_updates(std::uint32_t parameter, std::uint64_t updates);

  void save(const std::filesystem::path& directory);
  /// Returns the state of a checkpoint, all of which was read once.
  [[nodiscard]] std::unique_ptr<SavedState> open_checkpoint(
      const std::filesystem::path& directory) const;
  /// Takes that state. Where this fails, no parameter's state is whole. `updates`: how often each
  /// was updated; empty where the state has one number for all.
  void load(const SavedState& saved, std::span<const std::uint64_t> updates);

  [[nodiscard]] WakeSignal& wake() { return engine_.wake(); }

 private:
  const Executor& run_lists_of(EmbeddedPlan plan);
  void make_update(std::span<const cpu_adam::AdamOptions> groups, double scale,
                   const std::vector<std::uint64_t>& updates, const std::vector<bool>& skipped,
                   PendingUpdate& update) const;

  const EmbeddedLayout& layout_;
  StepEngine engine_;
  StepCycle cycle_;
  EmbeddedValues values_;
  ParameterState parameters_;
  std::vector<std::uint64_t> updates_;          ///< by parameter: Adam's t
  std::unique_ptr<Executor> backward_, norms_;  ///< of streamed parameters
  UseRecord record_;
};

}  // namespace spillway::engine
