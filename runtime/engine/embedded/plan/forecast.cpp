#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/engine/embedded/plan/embedded_plan.hpp"
#include "runtime/engine/embedded/plan/needs.hpp"
#include "runtime/engine/embedded_forecast.hpp"
#include "runtime/engine/machine/host_rates.hpp"
#include "runtime/engine/prepare/budgets.hpp"
#include "runtime/plan/placement/pools.hpp"
#include "runtime/plan/predict/simulator.hpp"

namespace spillway::engine {
namespace {

using plan::Lane;
using plan::Op;
using plan::StepPlan;

/// A backward pass has twice the products of a forward pass.
constexpr double kForwardShare = 1.0 / 3;

/// The ops of a plan that a step runs `times` times.
struct RepeatedOps {
  StepPlan ops;
  double times = 1;
};

std::vector<RepeatedOps> ops_of_step(const EmbeddedOptions& options, const plan::Workload& workload,
                                     const plan::Placement& placement) {
  std::vector<RepeatedOps> all;
  for (const PlanRuns& each : runs_of_step(options, workload)) {
    StepPlan ops = ops_of(each.plan, workload, placement);
    if (each.update == PlanRuns::Update::none) {
      ops = plan::only(ops, [](const Op& op) { return !op.if_pending; });
    }
    all.push_back({.ops = std::move(ops), .times = each.times});
  }
  return all;
}

/// Returns the bytes of the ops of a lane. What the step before has left in memory is not read.
double bytes_on(Lane lane, const StepPlan& ops) {
  double bytes = 0;
  for (const Op& op : ops.ops) {
    if (op.lane == lane && !op.held) bytes += static_cast<double>(op.bytes.value());
  }
  return bytes;
}

Bytes bytes_on(Lane lane, std::span<const RepeatedOps> step) {
  double bytes = 0;
  for (const RepeatedOps& each : step) bytes += each.times * bytes_on(lane, each.ops);
  return Bytes{static_cast<std::uint64_t>(bytes)};
}

double bytes_of(const plan::BlockShape& block, DType dtype) {
  return static_cast<double>(plan::bytes_of(block.padded_parameters, dtype).value() +
                             block.frozen_bytes.value());
}

/// Predicts a plan in which the passes of another framework, once forward and once backward through
/// all blocks, take `seconds`. They are ops of the device that does 1 FLOP a second.
double simulate_with_passes(StepPlan plan, const plan::Workload& workload,
                            plan::MachineProfile machine, double seconds) {
  machine.gpu_flops = 1;
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
  return plan::simulate(plan, machine).step_seconds;
}

}  // namespace

EmbeddedForecast::EmbeddedForecast(const EmbeddedOptions& options,
                                   std::span<const EmbeddedParameter> parameters,
                                   std::span<const FrozenTensor> frozen)
    : options_(options) {
  const EmbeddedLayout layout = make_layout(options, parameters, frozen);
  workload_ = layout.workload;
  placement_ = embedded_placement(options, layout);
  needs_ = needs_of(options, layout, placement_);
  Bytes gradients;  // of a backward pass, which no op of a plan brings from a GPU
  if (options.device == config::DeviceKind::cuda) {
    for (const EmbeddedParameter& parameter : parameters) {
      gradients += Bytes{parameter.elements * size_of(options.dtype)};
    }
  }
  const std::vector<RepeatedOps> step = ops_of_step(options, workload_, placement_);
  traffic_ = {.to_device = bytes_on(Lane::h2d, step),
              .from_device = bytes_on(Lane::d2h, step) + gradients * passes_of_step(options),
              .read = bytes_on(Lane::nvme_read, step),
              .written = bytes_on(Lane::nvme_write, step),
              .update = bytes_on(Lane::cpu, step)};
}

std::optional<std::string> EmbeddedForecast::refusal(Bytes beside) const {
  try {
    check_memory(options_, needs_, beside);
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
  rates.update = measure_update(train, workload_, 0, room).usual;
  if (options_.device == config::DeviceKind::host) rates.h2d = rates.d2h = measure_copy();
  const auto& drives = options_.nvme.empty() ? options_.frozen_nvme : options_.nvme;
  if (!drives.empty()) {
    const DiskRates disks = measure_disks(train, drives, {}, room);
    rates.nvme_read = disks.read;
    rates.nvme_write = disks.write;
    rates.nvme_combined = disks.combined;
    rates.disk = {.checksum = measure_checksums(train.threads),
                  .commit_seconds = disks.commit_seconds};
  }
  return rates;
}

double EmbeddedForecast::step_seconds(const plan::MachineProfile& rates,
                                      double pass_seconds) const {
  check(std::isfinite(pass_seconds) && pass_seconds >= 0, ErrorCode::invalid_argument,
        fmt::format("the passes of a step take {} s; give seconds of at least 0", pass_seconds));
  plan::MachineProfile machine = rates;
  if (options_.device == config::DeviceKind::host) machine.cores = {.compute = 1, .update = 1};
  const double each =
      workload_.streams_external ? pass_seconds / passes_of_step(options_) : pass_seconds;
  double seconds = 0;
  for (RepeatedOps& part : ops_of_step(options_, workload_, placement_)) {
    seconds += part.times * simulate_with_passes(std::move(part.ops), workload_, machine, each);
  }
  return seconds;
}

}  // namespace spillway::engine
