// `spillway bench step`: the training step itself, on tokens and parameters that mean nothing, with
// the loop, the planner and the engine that `spillway train` runs. Control thread only.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/train_loop.hpp"

namespace spillway::bench {

struct StepBenchRequest {
  model::ModelConfig config;
  /// `steps`: measured, after the warm-up.
  config::TrainOptions options;
  std::uint64_t warmup = 1;
  /// Share of the measured steps whose gradients are clipped, by a limit that replaces that of
  /// `options`. The parameters then never change: the norms of all steps, from which the limit
  /// follows, are those of a run before.
  std::optional<double> clip_share;
  /// Ranks are threads of this process, and each does the steps of `options`. What is measured is
  /// rank 0's.
  std::uint32_t ranks = 1;
  /// Limits what each rank sends and receives; absent: as fast as memcpy.
  std::optional<double> link_gigabytes_per_second;
  /// Place of the temporary run directory; state on disk goes there too unless `options.nvme` says
  /// otherwise. What is made in those directories is removed as well.
  std::filesystem::path scratch;
  std::filesystem::path profile;  ///< the machine profile; empty: none is kept
  std::function<void(const std::string&)> note;
};

struct TierUse {
  plan::Tier tier{};
  Bytes high_water;
  Bytes planned;
  Bytes budget;
};

struct StepBenchResult {
  engine::Planned plan;
  std::vector<double> seconds;            ///< of each measured step
  std::vector<engine::Exposed> exposed;   ///< of each measured step, by lane
  std::vector<double> idle_shares;        ///< of each measured step, of the device
  std::vector<engine::StepResult> steps;  ///< that were measured
  std::size_t measured_products = 0;      ///< algorithms that the machine profile had
  double first_loss = 0;                  ///< of the first step, warm-up included
  double last_loss = 0;
  std::array<TierUse, 3> tiers{};                  ///< by plan::Tier
  std::array<Bytes, plan::kMachineLanes> moved{};  ///< in one step, by copy and disk lane
  std::string device;                              ///< engine::device_name

  [[nodiscard]] std::uint64_t tokens_per_step() const {
    return plan::tokens_of_step(plan.workload);
  }
  [[nodiscard]] double median_seconds() const;
  [[nodiscard]] engine::Exposed median_exposed() const;
  [[nodiscard]] std::uint64_t clipped_steps() const;
  [[nodiscard]] std::uint64_t count(engine::UpdatesAhead ahead) const;
  [[nodiscard]] double tokens_per_second() const {
    return static_cast<double>(tokens_per_step()) / median_seconds();
  }
};

/// Throws as `engine::train`.
[[nodiscard]] StepBenchResult bench_step(const StepBenchRequest& request);

/// Returns FLOP/s of the device's own matrix product at a size that suits it, in the compute dtype:
/// what the step is compared with where no data sheet says more.
[[nodiscard]] double product_flops(const StepBenchRequest& request);

/// Returns seconds of FWD-BWD of one micro-batch with the whole model resident, activations kept as
/// far as they fit, no optimizer and nothing else on any lane; the median over the request's steps.
/// Throws `Error{does_not_fit}` if the device cannot hold that much.
[[nodiscard]] double resident_seconds(const StepBenchRequest& request);

}  // namespace spillway::bench
