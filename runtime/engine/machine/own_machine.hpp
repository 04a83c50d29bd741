// The machine that this process runs on, behind the planner: measured for a run with the model, the
// kernel and the disks that it has, and for a plan that is only shown with those that a run would
// have. Control thread only.
#pragma once

#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

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

class OwnMachine : public PlanningMachine {
 public:
  struct Parts {
    const model::ModelConfig& config;
    MachinePart part;
    RankGroups& ranks;
    MachineTuning& known;
    Note note;
    Note note_load;  ///< receives that other processes were busy
  };

  [[nodiscard]] plan::Budgets budgets(const config::TrainOptions& options,
                                      const plan::Workload& workload) final {
    return parts_.part.budgets(options, workload, parts_.ranks);
  }
  /// Returns with what the last profile was measured.
  [[nodiscard]] const Tuning& tuning() const { return tuning_; }

 protected:
  /// All that `parts` refers to outlives this object.
  explicit OwnMachine(Parts parts) : parts_(std::move(parts)) {}
  [[nodiscard]] const Parts& parts() const { return parts_; }

  using Directories = std::optional<std::vector<std::filesystem::path>>;
  /// Measures with this model; `state`: the directories whose disks are measured. The other
  /// arguments are those of `profile`.
  [[nodiscard]] plan::MachineProfile measure(const config::TrainOptions& options,
                                             const plan::Workload& whole,
                                             const plan::Budgets& budgets,
                                             const plan::Placement& fitting,
                                             const ModelRuntime& model, const Directories& state);

 private:
  void tune_in_turn(const CalibrationRequest& request, const plan::Placement& fitting);

  Parts parts_;
  Tuning tuning_;
};

/// For a run, whose model is made before its plan.
class RunMachine final : public OwnMachine {
 public:
  /// `model` outlives this object.
  RunMachine(Parts parts, const ModelRuntime& model,
             std::vector<std::filesystem::path> state_directories)
      : OwnMachine(std::move(parts)),
        model_(model),
        state_directories_(std::move(state_directories)) {}

  [[nodiscard]] plan::MachineProfile profile(const config::TrainOptions& options,
                                             const plan::Workload& whole,
                                             const plan::Budgets& budgets,
                                             const plan::Placement& fitting) override {
    return measure(options, whole, budgets, fitting, model_, state_directories_);
  }

 private:
  const ModelRuntime& model_;
  const std::vector<std::filesystem::path> state_directories_;
};

/// For a plan that is only shown: there is a model while the machine is measured, and a disk is
/// measured if the plan uses it.
class ShownMachine final : public OwnMachine {
 public:
  explicit ShownMachine(Parts parts) : OwnMachine(std::move(parts)) {}

  [[nodiscard]] plan::MachineProfile profile(const config::TrainOptions& options,
                                             const plan::Workload& whole,
                                             const plan::Budgets& budgets,
                                             const plan::Placement& fitting) override;
};

}  // namespace spillway::engine
