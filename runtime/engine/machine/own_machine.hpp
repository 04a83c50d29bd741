// OwnMachine: the machine that this process runs on, behind the planner, for a run and for a plan
// that is only shown: measured with the operators, the kernel and the disks that the run would
// have. Control thread only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/engine/device/compute_device.hpp"
#include "runtime/engine/device/model_runtime.hpp"
#include "runtime/engine/machine/calibrate.hpp"
#include "runtime/engine/machine/machine_share.hpp"
#include "runtime/engine/prepare/planner.hpp"
#include "runtime/engine/ranks/rank_groups.hpp"

namespace spillway::engine {

/// A rank's part of the machine that it runs on, and what memory and disk it may fill.
struct MachinePart {
  const std::filesystem::path& run;  ///< the directory of the job
  const MachineShare& share;
  /// What a run that goes on has on disk already.
  enum class SwapFiles : std::uint8_t { to_come, there } swap_files = SwapFiles::to_come;

  /// Returns the least that one of the ranks has, with which every rank plans. All ranks call it.
  [[nodiscard]] plan::Budgets budgets(const config::TrainOptions& options,
                                      const plan::Workload& workload, RankGroups& ranks) const;
};

class OwnMachine final : public PlanningMachine {
 public:
  /// The model of a run, made before its plan, and the folders of its state.
  struct OfRun {
    ModelRuntime& model;  ///< made anew where attention is to have another bound
    const DeviceRecord& device;
    std::vector<std::filesystem::path> state_directories;
  };
  struct Parts {
    const model::ModelConfig& config;
    MachinePart part;
    RankGroups& ranks;
    MachineTuning& known;
    Note note;
    Note note_load;              ///< receives that other processes were busy
    std::optional<OfRun> run{};  ///< absent: the run is only planned, and its model has sizes
  };
  /// All that `parts` refers to outlives this object.
  explicit OwnMachine(Parts parts) : parts_(std::move(parts)) {}

  [[nodiscard]] plan::Budgets budgets(const config::TrainOptions& options,
                                      const plan::Workload& workload) override {
    return parts_.part.budgets(options, workload, parts_.ranks);
  }
  [[nodiscard]] plan::Workload fit_model(const model::ModelConfig& config,
                                         const config::TrainOptions& options,
                                         const plan::Replicas& replicas,
                                         Bytes score_gradients) override;
  [[nodiscard]] plan::MachineProfile profile(const config::TrainOptions& options,
                                             const plan::Workload& whole,
                                             const plan::Budgets& budgets,
                                             const plan::Placement& fitting) override;
  /// Returns the software prefetch distance of updates with which the last profile was measured.
  [[nodiscard]] std::size_t update_prefetch() const { return tuning_.update_prefetch; }
  /// Tunes a new store of the run's state likewise.
  void tune(const Planned& plan, nvme_swap::StoreOptions& store) const;

 private:
  [[nodiscard]] CalibrationRequest request_for(const config::TrainOptions& options,
                                               const plan::Workload& workload,
                                               const plan::Budgets& budgets,
                                               const ModelRuntime& model) const;
  void tune_in_turn(const CalibrationRequest& request, const plan::Placement& fitting);

  Parts parts_;
  Tuning tuning_;
};

}  // namespace spillway::engine
