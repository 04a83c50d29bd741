#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/engine/embedded/needs.hpp"
#include "runtime/engine/embedded_forecast.hpp"
#include "runtime/engine/machine/host_rates.hpp"
#include "runtime/engine/prepare/budgets.hpp"
#include "runtime/plan/placement/pools.hpp"
#include "runtime/plan/predict/simulator.hpp"
#include "runtime/plan/step/step_builder.hpp"

namespace spillway::engine {
namespace {

using plan::Lane;
using plan::Op;
using plan::StepPlan;

/// A backward pass has twice the products of a forward pass.
constexpr double kForwardShare = 1.0 / 3;

/// A plan that a step runs `times` times.
struct RepeatedPlan {
  StepPlan plan;
  double times = 1;
};

/// Returns the plans of a step. An update that is deferred runs beside the next forward pass, in
/// one plan with it. Passes on streamed parameters have a plan each; where parameters are not
/// streamed, one plan has all of them.
std::vector<RepeatedPlan> plans_of_step(const plan::Workload& workload,
                                        const plan::Placement& placement, bool defers,
                                        double passes) {
  StepPlan step = plan::build_training_step(workload, placement);
  StepPlan without_update = plan::only(step, [](const Op& op) { return !op.if_pending; });
  std::vector<RepeatedPlan> plans;
  if (defers) {
    plans.push_back({std::move(step)});
  } else {
    plans.push_back({plan::build_flush(workload, placement)});
    plans.push_back({without_update});
  }
  if (!workload.streams_external) return plans;
  plans.push_back({std::move(without_update), passes - 1});
  plans.push_back({plan::build_external_backward(workload, placement), passes});
  plans.push_back({plan::build_external_norms(workload, placement)});
  return plans;
}

/// Returns the bytes of the ops of a lane. What the step before has left in memory is not read.
double bytes_on(Lane lane, const StepPlan& plan) {
  double bytes = 0;
  for (const Op& op : plan.ops) {
    if (op.lane == lane && !op.held) bytes += static_cast<double>(op.bytes.value());
  }
  return bytes;
}

Bytes bytes_on(Lane lane, std::span<const RepeatedPlan> plans) {
  double bytes = 0;
  for (const RepeatedPlan& each : plans) bytes += each.times * bytes_on(lane, each.plan);
  return Bytes{static_cast<std::uint64_t>(bytes)};
}

double bytes_of(const plan::BlockShape& block, DType dtype) {
  return static_cast<double>(plan::bytes_of(block.padded_parameters, dtype).value() +
                             block.frozen_bytes.value());
}

/// Makes the passes of another framework ops of the device, whose FLOPs are their seconds.
void set_pass_seconds(StepPlan& plan, const plan::Workload& workload, double seconds) {
  double whole = 0;
  for (const plan::BlockShape& block : workload.blocks) whole += bytes_of(block, workload.compute);
  for (Op& op : plan.ops) {
    if (op.lane != Lane::external) continue;
    const double direction = op.kind == plan::OpKind::forward ? kForwardShare : 1 - kForwardShare;
    const double part = bytes_of(workload.blocks[op.block], workload.compute) / whole;
    op.lane = Lane::gpu;
    op.flops = seconds * direction * part;
    op.bytes = {};
  }
}

}  // namespace

EmbeddedForecast::EmbeddedForecast(const EmbeddedOptions& options,
                                   std::span<const EmbeddedParameter> parameters,
                                   std::span<const FrozenTensor> frozen)
    : options_(options), passes_(std::max(options.gradients_per_step, 1U)) {
  const EmbeddedLayout layout = make_layout(options, parameters, frozen);
  workload_ = layout.workload;
  placement_ = embedded_placement(options, layout);
  EmbeddedNeeds needs = needs_of(options, layout, placement_);
  memory_ = std::move(needs.items);
  waiting_gradients_ = needs.gradients;
  Bytes gradients;  // of a backward pass, which no op of a plan brings from a GPU
  if (options.device == config::DeviceKind::cuda) {
    for (const EmbeddedParameter& parameter : parameters) {
      gradients += Bytes{parameter.elements * size_of(options.dtype)};
    }
  }
  const auto plans = plans_of_step(workload_, placement_, options.defers_updates, passes_);
  traffic_ = {.to_device = bytes_on(Lane::h2d, plans),
              .from_device = bytes_on(Lane::d2h, plans) + gradients * passes_,
              .read = bytes_on(Lane::nvme_read, plans),
              .written = bytes_on(Lane::nvme_write, plans),
              .update = bytes_on(Lane::cpu, plans)};
}

std::optional<std::string> EmbeddedForecast::refusal(Bytes beside) const {
  try {
    check_memory(options_, {.items = memory_, .gradients = waiting_gradients_}, beside);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::does_not_fit) throw;
    return error.what();
  }
  return std::nullopt;
}

plan::MachineProfile EmbeddedForecast::measure() const {
  const config::TrainOptions train = train_options(options_);
  const Bytes room = room_in(read_memory_budget());
  plan::MachineProfile rates;
  rates.op_overhead_seconds = kOpOverheadSeconds;
  rates.update = measure_update(train, workload_, 0, room);
  if (options_.device == config::DeviceKind::host) rates.h2d = rates.d2h = measure_copy();
  if (!options_.nvme.empty()) {
    const DiskRates disks = measure_disks(train, options_.nvme, {}, room);
    rates.nvme_read = disks.read;
    rates.nvme_write = disks.write;
  }
  return rates;
}

double EmbeddedForecast::step_seconds(const plan::MachineProfile& rates,
                                      double pass_seconds) const {
  check(std::isfinite(pass_seconds) && pass_seconds >= 0, ErrorCode::invalid_argument,
        fmt::format("the passes of a step take {} s; give seconds of at least 0", pass_seconds));
  plan::MachineProfile profile = rates;
  profile.gpu_flops = 1;  // see `set_pass_seconds`
  profile.cpu_shares_gpu = options_.device == config::DeviceKind::host;
  const double each = workload_.streams_external ? pass_seconds / passes_ : pass_seconds;
  double seconds = 0;
  for (RepeatedPlan& part :
       plans_of_step(workload_, placement_, options_.defers_updates, passes_)) {
    set_pass_seconds(part.plan, workload_, each);
    seconds += part.times * plan::simulate(part.plan, profile).step_seconds;
  }
  return seconds;
}

}  // namespace spillway::engine
