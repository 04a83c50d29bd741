// Builder: decides the order of the ops of one step plan; its parts write them. What ops have to
// wait for follows from the buffers that they use.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/plan/step/builder/external_passes.hpp"
#include "runtime/plan/step/builder/pass_writer.hpp"
#include "runtime/plan/step/builder/state_side.hpp"
#include "runtime/plan/step/step_builder.hpp"

namespace spillway::plan {

class Builder {
 public:
  /// Begins a list. `records`: state that lives in memory goes to disk after its update. The
  /// workload outlives this.
  Builder(const Workload& workload, const Placement& placement, const WhichList& which = {},
          bool records = false);
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;
  /// Begins a list for another placement in the memory of the last.
  void restart(const Placement& placement);

  // Each writes the list that the function of step_builder.hpp returns.
  void flush();
  void training();
  void fill();
  void evaluation();
  void snapshot() { state_.snapshot(); }
  void external_backward() { external_.backward(); }
  void external_norms() { external_.norms(); }
  [[nodiscard]] const StepPlan& plan() const { return step_.ops.plan(); }
  StepPlan take() { return std::move(step_.ops.plan()); }

 private:
  void update_ahead(std::uint32_t layer);
  void forward_layer(std::uint32_t layer, MicroBatches range, bool train, bool update_first);
  void pass(MicroBatches range, bool update_first);
  void round(std::uint32_t round);

  // Stages of a pipeline: stage_order.cpp.
  void staged_training();
  void run_entries(const std::vector<StageEntry>& entries);
  void staged_evaluation();
  void run_forward(const BlockRange& layers);
  void run_backward(const BlockRange& layers);

  [[nodiscard]] std::uint32_t blocks() const {
    return static_cast<std::uint32_t>(workload_.blocks.size());
  }

  const Workload& workload_;
  const Speculation speculation_;
  StepDraft step_;
  Weights weights_{step_};
  Gradients gradients_{step_};
  Activations activations_{step_};
  StateSide state_;
  Messages messages_{step_, weights_, activations_};
  LayerPasses whole_{step_, {weights_, gradients_, activations_, messages_}};
  GroupPasses of_group_{step_, {weights_, gradients_, activations_, messages_}};
  PassWriter& passes_;
  ExternalPasses external_{step_, weights_, gradients_, state_};
};

}  // namespace spillway::plan
