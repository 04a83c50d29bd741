#include "runtime/engine/training/update_decision.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cpu_adam/adam.hpp"
#include "runtime/config/schedule.hpp"

namespace spillway::engine {
namespace {

/// Steps in a row with non-finite gradients after which training has failed, not stumbled.
constexpr std::uint32_t kMostSkipsInARow = 10;

/// Skips the update of a step with a gradient that is not finite; the loss scale falls.
void skip(const config::TrainOptions& options, TrainingState& state, StepResult& result) {
  result.skipped = true;
  ++state.skipped;
  ++state.skipped_in_a_row;
  bool scales_down = false;
  if (options.compute == DType::fp16) {
    if (config::is_at_minimum(options.loss_scale, state.loss_scale)) {
      result.diverged = fmt::format(
          "step {}: gradients overflow at the least loss scale, fp16.min_loss_scale {} "
          "(loss {}); lower the learning rate, or resume from an earlier checkpoint",
          result.step, options.loss_scale.minimum, result.loss);
      return;
    }
    state.loss_scale =
        config::next_loss_scale(options.loss_scale, state.loss_scale, /*finite=*/false);
    scales_down = state.loss_scale.hysteresis_left > 0;  // until it is at its minimum
  }
  if (state.skipped_in_a_row < kMostSkipsInARow || scales_down) return;
  result.diverged = fmt::format(
      "step {}: {} steps in a row had non-finite gradients (loss {}, loss scale {}); "
      "lower the learning rate, or resume from an earlier checkpoint",
      result.step, state.skipped_in_a_row, result.loss, result.scale);
}

/// Makes the update numbered `state.updates`, of gradients that are multiplied by `factor`.
void make_update(const config::TrainOptions& options, const TrainingState& state, double lr,
                 double factor, PendingUpdate& update) {
  cpu_adam::AdamOptions adam = options.adam;
  adam.lr = lr;
  const bool has_betas =
      adam.optimizer == cpu_adam::Optimizer::adam || adam.optimizer == cpu_adam::Optimizer::lion;
  const auto momentum = config::first_momentum(options.schedule, state.updates);
  if (momentum && has_betas) {
    adam.beta1 = *momentum;
    adam.beta2 = config::kOneCycleBeta2;
  }
  adam.rounding_seed = options.seed;
  update.groups.resize(kNativeGroups);
  update.groups[kDecayed] = cpu_adam::make_scalars(adam, state.updates, factor);
  adam.weight_decay = 0;
  update.groups[kPlain] = cpu_adam::make_scalars(adam, state.updates, factor);
  update.pending = true;  // what the next list applies is whole
}

}  // namespace

double clip_factor(double norm, double limit) {
  return limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0;
}

void decide_update(const config::TrainOptions& options, TrainingState& state, StepResult& result,
                   PendingUpdate& update) {
  const std::uint64_t t = state.updates + 1;
  result.lr = config::learning_rate(options.schedule, t);
  update.pending = false;
  if (!std::isfinite(result.grad_norm)) return skip(options, state, result);
  if (options.compute == DType::fp16) {
    state.loss_scale =
        config::next_loss_scale(options.loss_scale, state.loss_scale, /*finite=*/true);
  }
  state.skipped_in_a_row = 0;
  state.updates = t;
  const double clip = clip_factor(result.grad_norm, options.gradient_clipping);
  make_update(options, state, result.lr, clip / result.scale, update);
}

void expect_update(const config::TrainOptions& options, TrainingState state, double scale,
                   PendingUpdate& update) {
  ++state.updates;
  make_update(options, state, config::learning_rate(options.schedule, state.updates), 1 / scale,
              update);
}

std::uint32_t steps_of_sums(const config::TrainOptions& options, const plan::Workload& workload) {
  const bool early = options.gradient_clipping == 0 && options.compute != DType::fp16;
  if (!early || !workload.stale.stays_full()) return 1;
  if (options.pipeline.meet_every > 0) return options.pipeline.meet_every;
  constexpr std::uint32_t kRoundsForEach = 67;  // 2/3 of a round are 1 % of so many
  const std::uint32_t rounds = kRoundsForEach * (workload.stage.count - 1);
  return (rounds + workload.rounds - 1) / workload.rounds;
}

void decide_early(const config::TrainOptions& options, TrainingState& state, StepResult& result,
                  double own_squares, PendingUpdate& update) {
  result.lr = config::learning_rate(options.schedule, ++state.updates);
  make_update(options, state, result.lr, 1 / result.scale, update);
  update.pending = std::isfinite(own_squares);
}

void judge_late(const config::TrainOptions& options, TrainingState& state, StepResult& result) {
  if (!std::isfinite(result.grad_norm)) return skip(options, state, result);
  state.skipped_in_a_row = 0;
}

}  // namespace spillway::engine
