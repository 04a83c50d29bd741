// What `train` is asked for, and what it tells: the request of a run, its plan, its events and its
// report.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/config/train_options.hpp"
#include "runtime/engine/step_result.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/predict/simulator.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::model {
class ParameterSource;
}
namespace spillway::comm {
class Communicator;
}

namespace spillway::engine {

struct TrainRequest {
  std::optional<model::ModelConfig> model;  ///< absent: from `from`, or the run when resuming
  config::TrainOptions options;
  std::filesystem::path data;  ///< train.bin, val.bin, meta.json
  std::filesystem::path run;
  /// An HF checkpoint, or a run or kept checkpoint whose training goes on in `run`; absent: random
  /// initialisation.
  std::optional<std::filesystem::path> from;
  /// What a new run starts with instead of random initialisation; outlives the run. Null: nothing.
  const model::ParameterSource* initial = nullptr;
  bool resume = false;
  /// The machine profile; empty: rates are measured and not kept, and no algorithms of matrix
  /// products are taken.
  std::filesystem::path profile;
  /// This rank's end of a job of several, which outlives the run; null: this rank is the only one.
  /// Rank 0 alone writes metrics and summaries; every rank has a folder of its own in `run`.
  comm::Communicator* ranks = nullptr;
};

/// Where a rank computes and keeps its state, in words and numbers to show.
struct ShownPlace {
  std::string machine;
  std::vector<std::uint32_t> nodes;  ///< of NUMA, whose cores the rank has
  std::uint32_t cores = 0;           ///< of its own; 0: there are more ranks than cores
  bool bound = false;                ///< it runs on these alone, as the system has agreed
  std::uint32_t threads = 0;         ///< of the update
  std::string gpu;                   ///< on the PCI bus; empty for the host
  std::vector<std::string> state;    ///< directories
};

/// What is known before the first step.
struct TrainPlan {
  const plan::Workload& workload;
  const plan::Placement& placement;
  const plan::Budgets& budgets;
  const plan::MachineProfile& profile;
  const plan::Prediction& prediction;
  const plan::StepPlan& step;
  std::vector<plan::MemoryItem> memory;
  std::uint64_t steps = 0;
  std::uint64_t first_step = 1;
  std::uint64_t commit_every = 1;
  config::DeviceKind device = config::DeviceKind::host;
  /// Algorithms of matrix products that the run took from the machine profile.
  std::size_t measured_products = 0;
  std::vector<ShownPlace> places{};  ///< by rank; none for one rank, which has the whole machine
};

/// Receives everything that happens, on the control thread, between steps.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void planned(const TrainPlan& plan) = 0;
  virtual void stepped(const StepResult& result, const StepUse& use) = 0;
  virtual void evaluated(std::uint64_t step, const Evaluation& evaluation) = 0;
  virtual void saved(std::uint64_t step, const std::filesystem::path& checkpoint) = 0;
  /// Passes on something that the user should know and that stops nothing.
  virtual void noted(const std::string& text) = 0;
};

/// The run in numbers, also written to RUN/report.json.
struct TrainReport {
  std::uint64_t steps = 0;  ///< done by this process
  std::uint64_t last_step = 0;
  std::optional<double> last_loss;  ///< absent where no step was left to do
  std::optional<double> val_loss;   ///< after the last step, with all updates applied
  double predicted_step_seconds = 0;
  double measured_step_seconds = 0;  ///< median
  double tokens_per_second = 0;
  std::uint64_t skipped = 0;
  Bytes device_high_water, device_capacity, host_high_water;
  Bytes state_read, state_written;
  bool interrupted = false;
};

}  // namespace spillway::engine
