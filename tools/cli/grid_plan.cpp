#include "tools/cli/grid_plan.hpp"

#include <fmt/format.h>

#include "runtime/engine/prepare/resolve.hpp"
#include "runtime/engine/prepare/workload.hpp"
#include "runtime/plan/predict/flops.hpp"
#include "tools/bench/machine_description.hpp"
#include "tools/bench/named_machines.hpp"
#include "tools/bench/peak_flops.hpp"

namespace spillway::cli {
namespace {

config::TrainOptions options_for(const GridRequest& request,
                                 const bench::MachineDescription& machine, const Note& note) {
  config::TrainOptions options = request.plan.options;
  check(!options.automatic.micro_batch && !options.automatic.compute, ErrorCode::invalid_argument,
        "--auto ranks grids for a given micro-batch and compute type; the configuration leaves one "
        "to \"auto\": set train_micro_batch_size_per_gpu and bf16 or fp16");
  check(!has_stale_weights(options.pipeline.schedule), ErrorCode::not_supported,
        "--auto ranks no grids of pipelines with stale weights; set another "
        "spillway.pipeline_schedule");
  if (options.pipeline.stages > 1 || options.tensor.ranks > 1 || options.zero_stage > 0) {
    note(
        "--auto chooses pipeline.stages, tensor_parallel.autotp_size and "
        "zero_optimization.stage itself");
  }
  if (!options.device) options.device = config::DeviceKind::cuda;
  options.device_generation = machine.generation;
  options.device_memory = options.device_memory.value_or(machine.capacity.device);
  options.host_memory = options.host_memory.value_or(machine.capacity.host);
  options.pipeline = {};
  options.tensor = {};
  engine::resolve(options, request.plan.model);
  return options;
}

plan::GridMachine rates_of(const bench::MachineDescription& machine, double flops, Bytes device,
                           const bench::Nodes& nodes) {
  const std::uint32_t each = nodes.ranks / nodes.nodes;
  check(each == 1 || machine.inside > 0, ErrorCode::invalid_argument,
        fmt::format("{} does not say how fast its GPUs reach each other; add \"nvlink_gbps\" to "
                    "its description",
                    machine.name));
  return {.flops = flops,
          .device_update = machine.lanes.gpu_update,
          .inside = machine.inside,
          .between = machine.between,
          .device = device,
          .gpus = each};
}

/// Throws an error with the remedies where no grid fits.
[[noreturn]] void refuse(const plan::GridRanking& ranking, std::uint32_t ranks) {
  const plan::DroppedGrid& least = ranking.dropped.front();
  const auto [cut, replicas, stages, zero, keeps] = least.choice;
  const std::string grid =
      fmt::format("tensor {} x data {} x pipeline {}", cut.ranks(), replicas, stages);
  if (least.bytes == 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("no grid of {} ranks divides the work; {}: {}; change --windows or "
                            "train_micro_batch_size_per_gpu",
                            ranks, grid, least.reason));
  }
  throw Error(ErrorCode::does_not_fit,
              fmt::format("no grid of {} ranks fits with everything on the devices; {} with stage "
                          "{}, which needs least, {}; use more ranks, a smaller micro-batch or a "
                          "shorter context, or plan without --auto, which can have state on the "
                          "host and on disks",
                          ranks, grid, zero, least.reason));
}

}  // namespace

double MadeGrids::mfu(const plan::RankedGrid& grid) const {
  return peak_flops == 0 ? 0 : model_flops / grid.seconds.step() / ranks / peak_flops;
}

MadeGrids make_grids(const GridRequest& request, const Note& note) {
  const PlanRequest& plan = request.plan;
  check(!plan.machine.empty(), ErrorCode::invalid_argument,
        "--auto needs --machine: it ranks grids for a machine that is described; "
        "spillway plan --machines lists some");
  bench::MachineDescription machine = bench::machine_from(plan.machine);
  const config::TrainOptions options = options_for(request, machine, note);
  bench::share_among_ranks(machine, plan.nodes);
  const std::uint64_t of_rank = config::windows_of_step(options);
  const std::uint64_t windows = request.windows > 0 ? request.windows : of_rank * plan.nodes.ranks;
  check(windows % options.micro_batch == 0, ErrorCode::invalid_argument,
        fmt::format("--windows {} is no multiple of the micro-batch, {}", windows,
                    options.micro_batch));
  const config::PipelineOptions& pipeline = plan.options.pipeline;
  const plan::DecoderShape shape = engine::decoder_shape(plan.model, options.context);
  MadeGrids made;
  made.machine = machine.name;
  made.basis = machine.basis;
  made.ranks = plan.nodes.ranks;
  made.windows = windows;
  made.context = options.context;
  made.micro_batch = options.micro_batch;
  made.model_flops = plan::flops_per_token(shape) * static_cast<double>(windows * options.context);
  made.peak_flops = bench::peak_flops(machine.gpu, options.compute).value_or(0);
  made.work = {.workload = engine::make_workload(plan.model, options, {}),
               .shape = shape,
               .heads = plan.model.heads,
               .kv_heads = plan.model.kv_heads,
               .micro_batches = windows / options.micro_batch,
               .schedule = pipeline.schedule,
               .chunks = pipeline.chunks};
  const double flops =
      bench::profile_for(machine, plan.model, made.work.workload, options).gpu_flops;
  made.rates = rates_of(machine, flops, *options.device_memory, plan.nodes);
  made.ranking = plan::rank_grids(made.work, made.rates,
                                  {.ranks = plan.nodes.ranks, .across = request.across});
  if (made.ranking.fitting.empty()) refuse(made.ranking, plan.nodes.ranks);
  return made;
}

}  // namespace spillway::cli
