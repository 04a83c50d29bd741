#include "tools/bench/step_bench.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <utility>

#include "comm/threads/thread_group.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/device/compute_device.hpp"
#include "runtime/engine/prepare/budgets.hpp"
#include "runtime/engine/prepare/resolve.hpp"
#include "runtime/engine/training/update_decision.hpp"
#include "tools/bench/clip_share.hpp"
#include "tools/bench/median.hpp"
#include "tools/bench/synthetic_training.hpp"

namespace spillway::bench {
namespace {

using plan::Lane;
using plan::Tier;

/// Bytes that one run of the plan moves on the copy and disk lanes; reads that the step before has
/// made are not made again.
std::array<Bytes, plan::kMachineLanes> bytes_by_lane(const plan::StepPlan& plan) {
  std::array<Bytes, plan::kMachineLanes> sums{};
  for (const plan::Op& op : plan.ops) {
    const bool moves = op.lane != Lane::gpu && op.lane != Lane::cpu;
    if (moves && !op.held) sums.at(static_cast<std::size_t>(op.lane)) += op.bytes;
  }
  return sums;
}

/// Disk space that the files of the directories really take.
Bytes space_of(const std::vector<std::filesystem::path>& directories) {
  Bytes sum;
  for (const auto& directory : directories) {
    if (!std::filesystem::exists(directory)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
      if (entry.is_regular_file()) sum += Bytes{entry.file_size()};
    }
  }
  return sum;
}

/// Keeps what the result needs of the run.
class Recorder final : public engine::TrainObserver {
 public:
  Recorder(const StepBenchRequest& request, std::vector<std::filesystem::path> state)
      : request_(request), state_(std::move(state)) {}

  void planned(const engine::TrainPlan& plan) override {
    result_.plan = plan.plan;
    result_.measured_products = plan.measured_products;
    result_.moved = bytes_by_lane(plan.step);
    const plan::Budgets& budgets = plan.plan.budgets;
    const std::array<Bytes, 3> limits{budgets.device, budgets.host, budgets.nvme};
    const std::vector<plan::MemoryItem> memory = plan.plan.memory();
    for (std::size_t tier = 0; tier < limits.size(); ++tier) {
      TierUse& use = result_.tiers.at(tier);
      use.tier = static_cast<Tier>(tier);
      use.budget = limits.at(tier);
      use.planned = plan::total(memory, use.tier);
    }
  }

  void stepped(const engine::StepResult& step, const engine::StepUse& use) override {
    if (step.step == 1) result_.first_loss = step.loss;
    if (step.step <= request_.warmup) return;
    result_.steps.push_back(step);
    result_.seconds.push_back(step.seconds);
    result_.idle_shares.push_back(1 - use.device_busy_seconds / step.seconds);
    result_.exposed.push_back(use.exposed);
    result_.last_loss = step.loss;
    result_.tiers[0].high_water = use.device.high_water;
    result_.tiers[1].high_water = use.pinned.high_water;
    result_.tiers[2].high_water = space_of(state_);
  }

  void evaluated(std::uint64_t /*step*/, const engine::Evaluation& /*evaluation*/) override {}
  void saved(std::uint64_t /*step*/, const std::filesystem::path& /*checkpoint*/) override {}
  void noted(const std::string& text) override { request_.note(text); }

  [[nodiscard]] StepBenchResult take() { return std::move(result_); }

 private:
  const StepBenchRequest& request_;
  std::vector<std::filesystem::path> state_;
  StepBenchResult result_;
};

/// What ranks other than the first tell nobody.
class Silence final : public engine::TrainObserver {
 public:
  void planned(const engine::TrainPlan& /*plan*/) override {}
  void stepped(const engine::StepResult& /*step*/, const engine::StepUse& /*use*/) override {}
  void evaluated(std::uint64_t /*step*/, const engine::Evaluation& /*evaluation*/) override {}
  void saved(std::uint64_t /*step*/, const std::filesystem::path& /*checkpoint*/) override {}
  void noted(const std::string& /*text*/) override {}
};

void train_ranks(const StepBenchRequest& request, const engine::TrainRequest& train,
                 Recorder& recorder) {
  const std::atomic<int> never{0};
  if (request.ranks == 1) {
    (void)engine::train(train, recorder, never);
    return;
  }
  comm::ThreadGroup group(request.ranks,
                          {.link_gigabytes_per_second = request.link_gigabytes_per_second});
  group.run([&](comm::Communicator& communicator) {
    engine::TrainRequest mine = train;
    mine.ranks = &communicator;
    Silence silence;
    const bool first = communicator.rank() == Rank{0};
    (void)engine::train(mine, first ? static_cast<engine::TrainObserver&>(recorder) : silence,
                        never);
  });
}

StepBenchResult run_steps(const StepBenchRequest& request) {
  const ScratchDirectory scratch(request.scratch);
  engine::TrainRequest train;
  train.model = request.config;
  train.options = request.options;
  engine::resolve(train.options, request.config);
  // Swap files lie in directories of their own, so that they disappear too.
  std::vector<std::unique_ptr<ScratchDirectory>> state;
  for (std::filesystem::path& directory : train.options.nvme) {
    std::filesystem::create_directories(directory);
    state.push_back(std::make_unique<ScratchDirectory>(directory));
    directory = state.back()->path();
  }
  const std::uint64_t measured = train.options.steps;
  train.options.steps += request.warmup;
  train.data = scratch.path() / "data";
  train.run = scratch.path() / "run";
  train.profile = request.profile;
  const NoiseParameters parameters(request.config);
  train.initial = &parameters;

  const config::TrainOptions& o = train.options;
  const std::uint64_t windows = o.steps * config::windows_of_step(o) * request.ranks;
  write_random_tokens(train.data, request.config.vocab_size, windows * o.context + 1, o.seed);
  Recorder recorder(request, engine::state_directories(o, train.run));
  train_ranks(request, train, recorder);
  StepBenchResult result = recorder.take();
  result.device = engine::device_name(*train.options.device);
  result.plan.options.steps = measured;
  return result;
}

/// Returns a request whose steps are clipped as often as `request` says. Without an update no step
/// changes the norm of a later one.
StepBenchRequest with_limit(const StepBenchRequest& request) {
  StepBenchRequest limited = request;
  limited.options.adam.lr = 0;
  limited.options.schedule.optimizer_lr = limited.options.schedule.peak_lr = 0;
  limited.options.gradient_clipping = 0;
  std::vector<double> norms;
  for (const engine::StepResult& step : run_steps(limited).steps) norms.push_back(step.grad_norm);
  const double clipped = std::round(*request.clip_share * static_cast<double>(norms.size()));
  limited.options.gradient_clipping =
      limit_that_clips(std::move(norms), static_cast<std::uint64_t>(clipped));
  return limited;
}

}  // namespace

double StepBenchResult::median_seconds() const { return median_of(seconds); }

engine::Exposed StepBenchResult::median_exposed() const {
  engine::Exposed medians{};
  for (std::size_t lane = 0; lane < medians.size(); ++lane) {
    std::vector<double> values;
    values.reserve(exposed.size());
    for (const engine::Exposed& step : exposed) values.push_back(step.at(lane));
    medians.at(lane) = median_of(values);
  }
  return medians;
}

std::uint64_t StepBenchResult::clipped_steps() const {
  return static_cast<std::uint64_t>(std::ranges::count_if(steps, [&](const auto& step) {
    return engine::clip_factor(step.grad_norm, plan.options.gradient_clipping) < 1;
  }));
}

std::uint64_t StepBenchResult::count(engine::UpdatesAhead ahead) const {
  return static_cast<std::uint64_t>(std::ranges::count(steps, ahead, &engine::StepResult::ahead));
}

StepBenchResult bench_step(const StepBenchRequest& request) {
  return run_steps(request.clip_share ? with_limit(request) : request);
}

}  // namespace spillway::bench
