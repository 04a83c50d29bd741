// The upper limit of a step, on the same engine: FWD-BWD with everything on the device already.
#include <algorithm>
#include <chrono>
#include <limits>

#include "runtime/base/elapsed.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/device/compute_device.hpp"
#include "runtime/engine/device/model_runtime.hpp"
#include "runtime/engine/machine/machine_tuning.hpp"
#include "runtime/engine/prepare/budgets.hpp"
#include "runtime/engine/prepare/place.hpp"
#include "runtime/engine/prepare/resolve.hpp"
#include "runtime/engine/prepare/workload.hpp"
#include "runtime/engine/step/step_engine.hpp"
#include "runtime/plan/search/choose.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tools/bench/median.hpp"
#include "tools/bench/step_bench.hpp"
#include "tools/bench/synthetic_training.hpp"

namespace spillway::bench {
namespace {

using plan::OpKind;

bool computes(const plan::Op& op) {
  return plan::is_model_op(op) || op.kind == OpKind::round_gradient;
}

/// Rounds one block's parameters into pinned memory, as the update would have left them.
void round_parameters(std::span<const float> values, DType compute, std::span<std::byte> target) {
  if (compute == DType::fp32) {
    std::ranges::copy(std::as_bytes(values), target.begin());
    return;
  }
  auto* const narrow = reinterpret_cast<std::uint16_t*>(target.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    narrow[i] = compute == DType::bf16 ? parameter_to_bf16(values[i]) : to_fp16(values[i]);
  }
}

/// One micro-batch a step, everything that it needs resident.
class ResidentModel {
 public:
  ResidentModel(const StepBenchRequest& request, const std::filesystem::path& scratch)
      : model_(engine::make_model_runtime(
            request.config, one_micro_batch(request),
            {.products = engine::MachineTuning(request.profile).products()})),
        engine_(setup(request, scratch), model_),
        executor_(engine_.prepare(plan::only(
            plan::build_training_step(engine_.workload(), engine_.placement()), computes))),
        decisions_{.loss_gradient_scale = 1.0F / static_cast<float>(engine_.workload().tokens)} {
    upload_parameters(request.config);
    const std::span<std::byte> tokens = engine_.memory().host({plan::PoolKind::host_tokens});
    fill_random_tokens(
        {reinterpret_cast<std::int32_t*>(tokens.data()), tokens.size() / sizeof(std::int32_t)},
        request.config.vocab_size, request.options.seed);
    engine_.actions().follow(decisions_);
  }

  double step_seconds() {
    const auto begin = std::chrono::steady_clock::now();
    executor_->run(engine_.actions());
    return seconds_since(begin);
  }

 private:
  static config::TrainOptions one_micro_batch(const StepBenchRequest& request) {
    config::TrainOptions options = request.options;
    engine::resolve(options, request.config);
    options.gradient_accumulation_steps = options.rounds = 1;
    options.device_memory.reset();  // the limit is the device's, not the run's
    options.residency = config::Residency::all;
    options.checkpointing = config::Checkpointing::automatic;
    options.state_home = config::StateHome::nvme;  // which takes no memory here, nor any file
    options.commits = false;
    options.update = config::UpdateMode::deferred;  // there is none
    return options;
  }

  [[nodiscard]] engine::EngineSetup setup(const StepBenchRequest& request,
                                          const std::filesystem::path& scratch) const {
    config::TrainOptions options = one_micro_batch(request);
    options.threads = 1;
    plan::Workload workload = engine::make_workload(request.config, *model_.transformer, options);
    const plan::Budgets budgets{.device = engine::make_budgets(options, scratch, workload).device,
                                .host = plan::kUncounted,
                                .nvme = plan::kUncounted};
    plan::Placement placement = engine::place(request.config, options, workload, budgets);
    return {.config = request.config,
            .plan = {.options = std::move(options),
                     .workload = std::move(workload),
                     .budgets = budgets,
                     .placement = std::move(placement)}};
  }

  void upload_parameters(const model::ModelConfig& config) {
    const NoiseParameters source(config);
    std::vector<float> values;
    const plan::Workload& workload = engine_.workload();
    offload::Stream& stream = *engine_.streams().upload;
    for (std::uint32_t b = 0; b < workload.blocks.size(); ++b) {
      values.resize(workload.blocks[b].padded_parameters.value());
      source.read(BlockIndex{b}, ElementCount{}, values);
      const engine::Memory& memory = engine_.memory();
      const engine::StateSlots& slots = engine_.slots();
      const std::span<std::byte> host =
          memory.host(slots.tiles_of(plan::PoolKind::host_parameters, b));
      round_parameters(values, workload.compute, host);
      stream.upload(memory.device(slots.tiles_of(plan::PoolKind::resident_parameters, b)), host);
    }
    stream.synchronize();
  }

  engine::ModelRuntime model_;
  engine::StepEngine engine_;
  std::unique_ptr<engine::Executor> executor_;
  const engine::StepDecisions decisions_;
};

}  // namespace

double resident_seconds(const StepBenchRequest& request) {
  const ScratchDirectory scratch(request.scratch);
  ResidentModel model(request, scratch.path());
  std::vector<double> seconds;
  for (std::uint64_t step = 0; step < request.warmup; ++step) model.step_seconds();
  for (std::uint64_t step = 0; step < request.options.steps; ++step) {
    seconds.push_back(model.step_seconds());
  }
  return median_of(seconds);
}

double product_flops(const StepBenchRequest& request) {
  constexpr std::uint64_t kRows = 1024;
  constexpr std::uint64_t kInner = 1024;
  constexpr std::uint64_t kColumns = 4096;
  constexpr int kProducts = 8;
  config::TrainOptions options = request.options;
  engine::resolve(options, request.config);
  const engine::ModelRuntime model = engine::make_model_runtime(request.config, options);
  const auto backend = engine::make_backend(
      options, {.device = plan::kUncounted, .host = plan::kUncounted, .nvme = plan::kUncounted},
      nullptr);
  const auto stream = backend->make_stream("product");
  model.ops->bind_stream(stream->native());
  const model::GemmPlan plan = model.ops->plan_gemm(
      {.rows = kRows, .columns = kColumns, .inner = kInner, .transpose_b = true});
  const std::uint64_t element = size_of(options.compute);
  const offload::DeviceMemory a(*backend, Bytes{kRows * kInner * element});
  const offload::DeviceMemory b(*backend, Bytes{kColumns * kInner * element});
  const offload::DeviceMemory out(*backend, Bytes{kRows * kColumns * element});
  const offload::DeviceMemory workspace(*backend, std::max(plan.workspace, Bytes{1}));
  for (const offload::DeviceMemory* memory : {&a, &b}) {
    offload::PinnedMemory values(*backend, memory->size());
    std::ranges::fill(values.host(), std::byte{0x3c});  // about 0.01 in any of the dtypes
    stream->upload(memory->device(), values.host());
    stream->synchronize();
  }
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kProducts; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    stream->submit([&] {
      model.ops->gemm(plan, {.a = a.device(),
                             .b = b.device(),
                             .bias = {},
                             .residual = {},
                             .out = out.device(),
                             .workspace = workspace.device()});
    });
    stream->synchronize();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    least = std::min(least, taken.count());
  }
  return 2.0 * kRows * kColumns * kInner / least;
}

}  // namespace spillway::bench
