#include "runtime/engine/machine/device_rates.hpp"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "cpu_adam/traffic.hpp"
#include "offload/memory.hpp"
#include "runtime/engine/device/compute_device.hpp"
#include "runtime/engine/machine/calibration_sizes.hpp"
#include "runtime/engine/machine/normal_numbers.hpp"
#include "runtime/engine/machine/timing.hpp"
#include "runtime/engine/step/step_engine.hpp"
#include "runtime/plan/step/step_builder.hpp"

namespace spillway::engine {
namespace {

using offload::DeviceMemory;
using offload::PinnedMemory;

/// Touches all memory and fills in tokens of the vocabulary before measuring. fp32 values are two
/// numbers of a 16-bit compute type, of which the upper one is all that counts.
void fill(StepEngine& engine, const NormalNumbers& numbers, std::uint32_t vocabulary) {
  for (std::size_t p = 0; p < plan::kPoolCount; ++p) {
    const auto pool = static_cast<plan::PoolKind>(p);
    const std::span<std::byte> host = engine.memory().all_host(pool);
    const offload::DeviceSpan<std::byte> device = engine.memory().all_device(pool);
    if (pool == plan::PoolKind::host_tokens) {
      write_random_tokens(host, vocabulary);
    } else {
      numbers.fill(host);
    }
    if (pool == plan::PoolKind::workspace || device.empty()) continue;
    if (pool == plan::PoolKind::device_tokens) {
      numbers.fill_tokens(device, vocabulary);
    } else {
      numbers.fill(device);
    }
  }
}

/// Measures passes over the memory of one layer.
class PassBench {
 public:
  PassBench(const EngineSetup& setup, const ModelRuntime& model, const NormalNumbers& numbers)
      : setup_(setup),
        model_(model),
        numbers_(numbers),
        warm_(setup.plan.options.device != config::DeviceKind::cuda) {}

  /// Times these ops of a layer, in the memory of that layer.
  Seconds seconds_of(plan::StepPlan pass) {
    StepEngine engine(
        setup_, model_,
        plan::used_by(pass, plan::make_pools(setup_.plan.workload, setup_.plan.placement)));
    fill(engine, numbers_, static_cast<std::uint32_t>(setup_.config.vocab_size));
    const StepDecisions decisions{.loss_gradient_scale = 1};
    engine.actions().follow(decisions);
    const auto executor = engine.prepare(std::move(pass));
    const auto run = [&] { executor->run_on_stream(engine.actions(), plan::Lane::gpu); };
    if (!warm_) warm_up(run);
    warm_ = true;
    return timed_team(run);
  }

 private:
  const EngineSetup& setup_;
  const ModelRuntime& model_;
  const NormalNumbers& numbers_;
  bool warm_;  ///< a host's cores are taken to be
};

/// Seconds from which on the first layer and the head are not timed, but taken to work at the pace
/// of the layers between them.
constexpr double kLongestEnds = 1;

/// Returns the FLOPs of the first layer and of the head for a micro-batch.
double flops_of_ends(const plan::Workload& workload) {
  plan::Workload ends = workload;
  for (std::uint32_t b = 0; b < ends.blocks.size(); ++b) {
    const std::uint32_t layer = workload.layer_of(b);
    if (layer == 0 || layer == workload.head_layer()) continue;
    ends.blocks[b].forward_flops = ends.blocks[b].backward_flops = 0;
  }
  return plan::micro_batch_flops(ends);
}

/// Times all FWD-BWD work of one micro-batch through the whole model, activations
/// kept, of which one layer stands for all; of a tensor group, one attention and one MLP.
Seconds model_seconds(const CalibrationRequest& request, const NormalNumbers& numbers) {
  config::TrainOptions options = request.options;
  options.threads = 1;  // there is no update
  plan::Workload workload = request.workload;
  workload.micro_batches = workload.rounds = 1;
  const plan::Placement placement = plan::lean_placement(workload, plan::Tier::device);
  const plan::StepPlan step = plan::build_training_step(workload, placement);
  const EngineSetup setup{.config = request.config,
                          .plan = {.options = std::move(options),
                                   .workload = workload,
                                   .budgets = request.budgets,
                                   .placement = placement}};
  PassBench bench(setup, request.model, numbers);
  const auto seconds = [&](const std::function<bool(const plan::Op&)>& wanted) {
    return bench.seconds_of(plan::only(step, wanted));
  };
  const auto of_layer = [&](std::uint32_t layer) {
    return seconds([&workload, layer](const plan::Op& op) {
      return (op.kind == plan::OpKind::forward || op.kind == plan::OpKind::backward) &&
             workload.layer_of(op.block) == layer;
    });
  };
  const std::uint32_t kinds = workload.sums_passes() ? 2 : 1;
  Seconds sum = of_layer(1);  // what a GPU becomes warm with
  if (kinds == 2) sum += of_layer(2);
  const std::uint32_t layers = (workload.head_layer() - 1) / kinds;
  sum *= layers;
  // A large head on a processor takes minutes.
  Seconds whole = sum;
  const double all = plan::micro_batch_flops(workload);
  whole *= all / (all - flops_of_ends(workload));
  if (whole.usual - sum.usual > kLongestEnds) return whole;
  sum += seconds([](const plan::Op& op) { return op.kind == plan::OpKind::loss; });
  sum += of_layer(0);
  return sum;
}

/// Copies between pinned memory and the device, of the size of a gradient slot.
void measure_link(offload::DeviceBackend& backend, Bytes bytes, const NormalNumbers& numbers,
                  DeviceRates& rates) {
  const DeviceMemory above(backend, bytes);
  const DeviceMemory below(backend, bytes);
  const PinnedMemory source(backend, bytes);
  const PinnedMemory target(backend, bytes);
  numbers.fill(source.host());
  numbers.fill(below.device());
  const auto up = backend.make_stream("calibrate h2d");
  const auto down = backend.make_stream("calibrate d2h");
  const auto amount = static_cast<double>(bytes.value());
  const Seconds above_seconds = timed([&] {
    up->upload(above.device(), source.host());
    up->synchronize();
  });
  const Seconds below_seconds = timed([&] {
    down->download(target.host(), below.device());
    down->synchronize();
  });
  const Seconds both_seconds = timed([&] {
    up->upload(above.device(), source.host());
    down->download(target.host(), below.device());
    up->synchronize();
    down->synchronize();
  });
  rates.h2d = amount / above_seconds.usual;
  rates.d2h = amount / below_seconds.usual;
  rates.h2d_d2h_combined = 2 * amount / both_seconds.usual;
  Seconds each_way = above_seconds;
  each_way += below_seconds;
  rates.link_pace = each_way.pace();
}

/// The fused update of a tile whose state lies on the device.
double update_rate(const config::TrainOptions& options, const plan::Workload& w, Bytes room,
                   const NormalNumbers& numbers, offload::DeviceBackend& backend) {
  const cpu_adam::Kernel& kernel = update_kernel(options, w);
  const ElementCount tile = std::min(ElementCount{options.tile_parameters}, plan::largest_block(w));
  const std::size_t count =
      update_parameters(kernel, tile, ElementCount{kLeafParameters}, room).value();
  const cpu_adam::StateLayout layout = cpu_adam::make_layout(kernel.format, count);
  const DeviceMemory state(backend, Bytes{layout.bytes});
  const DeviceMemory gradient(backend, Bytes{count * size_of(kernel.gradient_dtype)});
  const DeviceMemory parameters(backend, Bytes{count * size_of(kernel.parameter_dtype)});
  numbers.clear(state.device());  // as a run begins: variances are not negative
  numbers.fill(gradient.device());
  numbers.fill(parameters.device());
  const auto stream = backend.make_stream("calibrate");
  const auto math = make_device_math(options, *stream);
  const std::array<cpu_adam::ParameterGroup, 1> groups{
      {{.end = count, .scalars = cpu_adam::make_scalars(options.adam, 1, 1.0)}}};
  std::byte* const where = parameters.device().address();
  std::byte* const kept = state.device().address();
  const cpu_adam::UpdateRange range =
      cpu_adam::tile_range(layout, kept, kept, gradient.device().address(), where, where);
  const Seconds seconds = timed([&] {
    stream->submit([&] {
      math->update({.format = kernel.format,
                    .gradient = kernel.gradient_dtype,
                    .parameter = kernel.parameter_dtype},
                   groups, range);
    });
    stream->synchronize();
  });
  return static_cast<double>(count) *
         cpu_adam::bytes_per_parameter(kernel.format, kernel.gradient_dtype,
                                       kernel.parameter_dtype) /
         seconds.usual;
}

}  // namespace

DeviceRates measure_device(const CalibrationRequest& request) {
  const plan::Workload& workload = request.workload;
  const plan::Budgets& budgets = request.budgets;
  DeviceRates rates;
  const NormalNumbers numbers(request.options);
  const Seconds passes = model_seconds(request, numbers);
  rates.flops = plan::micro_batch_flops(workload) / passes.usual;
  rates.pace = passes.pace();
  const auto backend = make_backend(request.options, budgets, nullptr);
  const std::uint64_t slot = plan::gradient_slot_elements(workload).value();
  const Bytes parameters{slot * size_of(workload.compute)};
  measure_link(*backend, link_bytes(parameters, budgets.device, budgets.host), numbers, rates);
  if (request.options.device == config::DeviceKind::cuda) {
    rates.update = update_rate(request.options, workload, budgets.device, numbers, *backend);
  }
  return rates;
}

}  // namespace spillway::engine
