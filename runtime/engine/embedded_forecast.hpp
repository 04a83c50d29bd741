// EmbeddedForecast: what an EmbeddedTrainer would take and move, from sizes alone. Its numbers are
// those by which the trainer refuses. Any thread; only `measure` takes memory and writes files.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/embedded_trainer.hpp"
#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

/// Bytes that one step moves, with as many backward passes as gradients of each parameter.
struct EmbeddedTraffic {
  Bytes to_device;
  Bytes from_device;
  Bytes read;     ///< from disks
  Bytes written;  ///< to disks
  Bytes update;   ///< read and written in host memory by the update and the norm
};

/// What a trainer takes of the machine.
struct EmbeddedNeeds {
  /// All bytes that the trainer allocates and that its files take, item by item, exactly.
  std::vector<plan::MemoryItem> items;
  Bytes gradients;  ///< of host memory, in which gradients wait for the update

  /// Returns the sums by tier.
  [[nodiscard]] plan::Budgets total() const;
};

class EmbeddedForecast {
 public:
  /// Takes what the trainer would be made with; `values` may be null everywhere. Throws as the
  /// trainer's constructor does for wrong arguments, and `Error{does_not_fit}` where
  /// `device_memory` has no room for the largest unit.
  EmbeddedForecast(const EmbeddedOptions& options, std::span<const EmbeddedParameter> parameters,
                   std::span<const FrozenTensor> frozen);

  /// Lists all that the trainer allocates and that its files take, as `EmbeddedTrainer::memory`.
  [[nodiscard]] const std::vector<plan::MemoryItem>& memory() const { return needs_.items; }
  [[nodiscard]] const EmbeddedTraffic& traffic() const { return traffic_; }
  /// Returns why this machine lacks the memory now, in the words of the trainer's error; nothing if
  /// it has it. `beside`: bytes of host memory that other trainers will have taken by then.
  [[nodiscard]] std::optional<std::string> refusal(Bytes beside = {}) const;

  /// Measures this machine as `step_seconds` wants it: the update, copies on the host, and the
  /// disks of `EmbeddedOptions::nvme`; the link of a GPU stays 0. Takes seconds.
  [[nodiscard]] plan::MachineProfile measure() const;
  /// Predicts the seconds of a step whose passes alone take `pass_seconds`, all forward and
  /// backward passes together; a third of it is forward. Blocks take parts by their bytes. Throws
  /// `Error{invalid_argument}` for seconds below 0 and for a rate that is used and 0.
  [[nodiscard]] double step_seconds(const plan::MachineProfile& rates, double pass_seconds) const;

 private:
  EmbeddedOptions options_;
  plan::Workload workload_;
  plan::Placement placement_;
  EmbeddedNeeds needs_;
  EmbeddedTraffic traffic_;
};

}  // namespace spillway::engine
