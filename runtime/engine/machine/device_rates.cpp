#include "runtime/engine/machine/device_rates.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "cpu_adam/traffic.hpp"
#include "offload/memory.hpp"
#include "runtime/engine/machine/calibration_sizes.hpp"
#include "runtime/engine/machine/compute_device.hpp"
#include "runtime/engine/machine/least_seconds.hpp"
#include "runtime/engine/step/step_engine.hpp"
#include "runtime/plan/step/step_builder.hpp"

namespace spillway::engine {
namespace {

using offload::DeviceMemory;
using offload::PinnedMemory;

/// What an op finds has no meaning and is memory that somebody has touched.
void clear(StepEngine& engine, model::Ops& ops) {
  offload::Stream& stream = *engine.streams().compute;
  for (std::size_t p = 0; p < plan::kPoolCount; ++p) {
    const auto pool = static_cast<plan::PoolKind>(p);
    std::ranges::fill(engine.memory().all_host(pool), std::byte{0});
    const auto all = engine.memory().all_device(pool).as<float>();
    if (pool == plan::PoolKind::workspace || all.empty()) continue;
    stream.submit([&ops, all] { ops.fill_zero(all); });
  }
  stream.synchronize();
}

/// Returns the seconds of these ops of a layer, in the memory of that layer.
double seconds_of(plan::StepPlan pass, const EngineSetup& setup, const ModelRuntime& model) {
  StepEngine engine(setup, model,
                    plan::used_by(pass, plan::make_pools(setup.workload, setup.placement)));
  clear(engine, *model.ops);
  engine.actions().step().loss_gradient_scale = 1;
  const auto executor = engine.prepare(std::move(pass));
  return least_seconds([&] { executor->run_on_stream(engine.actions(), plan::Lane::gpu); });
}

/// Returns the seconds of all FWD-BWD work of one micro-batch through the whole model, activations
/// kept, of which one layer stands for all.
double model_seconds(const CalibrationRequest& request) {
  EngineSetup setup{.config = request.config,
                    .options = request.options,
                    .workload = request.workload,
                    .budgets = request.budgets};
  setup.options.threads = 1;  // there is no update
  setup.workload.micro_batches = setup.workload.rounds = 1;
  setup.placement = plan::lean_placement(setup.workload, plan::Tier::device);
  const plan::StepPlan step = plan::build_training_step(setup.workload, setup.placement);
  const auto seconds = [&](const std::function<bool(const plan::Op&)>& wanted) {
    return seconds_of(plan::only(step, wanted), setup, request.model);
  };
  const auto of_layer = [&](std::uint32_t layer) {
    return seconds([&setup, layer](const plan::Op& op) {
      return (op.kind == plan::OpKind::forward || op.kind == plan::OpKind::backward) &&
             setup.workload.layer_of(op.block) == layer;
    });
  };
  const double head = seconds([](const plan::Op& op) { return op.kind == plan::OpKind::loss; });
  return of_layer(0) + of_layer(1) * (setup.workload.head_layer() - 1) + head;
}

/// Copies between pinned memory and the device, of the size of a gradient slot.
void measure_link(offload::DeviceBackend& backend, Bytes bytes, DeviceRates& rates) {
  const DeviceMemory above(backend, bytes);
  const DeviceMemory below(backend, bytes);
  const PinnedMemory source(backend, bytes);
  const PinnedMemory target(backend, bytes);
  std::memset(source.host().data(), 0, bytes.value());
  const auto up = backend.make_stream("calibrate h2d");
  const auto down = backend.make_stream("calibrate d2h");
  const auto amount = static_cast<double>(bytes.value());
  rates.h2d = amount / least_seconds([&] {
                up->upload(above.device(), source.host());
                up->synchronize();
              });
  rates.d2h = amount / least_seconds([&] {
                down->download(target.host(), below.device());
                down->synchronize();
              });
  rates.h2d_d2h_combined = 2 * amount / least_seconds([&] {
                             up->upload(above.device(), source.host());
                             down->download(target.host(), below.device());
                             up->synchronize();
                             down->synchronize();
                           });
}

/// The fused update of a tile whose state lies on the device.
double update_rate(const config::TrainOptions& options, const plan::Workload& w, Bytes room,
                   offload::DeviceBackend& backend) {
  const cpu_adam::Kernel& kernel = update_kernel(options, w);
  const ElementCount tile = std::min(ElementCount{options.tile_parameters}, plan::largest_block(w));
  const std::size_t count =
      update_parameters(kernel, tile, ElementCount{kLeafParameters}, room).value();
  const cpu_adam::StateLayout layout = cpu_adam::make_layout(kernel.format, count);
  const DeviceMemory state(backend, Bytes{layout.bytes});
  const DeviceMemory gradient(backend, Bytes{count * size_of(kernel.gradient_dtype)});
  const DeviceMemory parameters(backend, Bytes{count * size_of(kernel.parameter_dtype)});
  const auto stream = backend.make_stream("calibrate");
  const auto math = make_device_math(options, *stream);
  const std::array<cpu_adam::ParameterGroup, 1> groups{
      {{.end = count, .scalars = cpu_adam::make_scalars(options.adam, 1, 1.0)}}};
  std::byte* const where = parameters.device().address();
  std::byte* const kept = state.device().address();
  const cpu_adam::UpdateRange range =
      cpu_adam::tile_range(layout, kept, kept, gradient.device().address(), where, where);
  const double seconds = least_seconds([&] {
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
         seconds;
}

}  // namespace

DeviceRates measure_device(const CalibrationRequest& request) {
  const plan::Workload& workload = request.workload;
  const plan::Budgets& budgets = request.budgets;
  DeviceRates rates;
  rates.flops = plan::micro_batch_flops(workload) / model_seconds(request);
  const auto backend = make_backend(request.options, budgets, nullptr);
  const std::uint64_t slot = plan::gradient_slot_elements(workload).value();
  const Bytes parameters{slot * size_of(workload.compute)};
  measure_link(*backend, link_bytes(parameters, budgets.device, budgets.host), rates);
  if (request.options.device == config::DeviceKind::cuda) {
    rates.update = update_rate(request.options, workload, budgets.device, *backend);
  }
  return rates;
}

}  // namespace spillway::engine
