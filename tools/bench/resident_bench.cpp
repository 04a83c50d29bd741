// The upper limit of a step, on the same engine: FWD-BWD with everything on the device already.
#include <algorithm>
#include <chrono>
#include <limits>

#include "runtime/base/error.hpp"
#include "runtime/engine/machine/budgets.hpp"
#include "runtime/engine/machine/compute_device.hpp"
#include "runtime/engine/machine/machine_tuning.hpp"
#include "runtime/engine/step/executor.hpp"
#include "runtime/engine/step/model_constants.hpp"
#include "runtime/engine/step/op_actions.hpp"
#include "runtime/plan/placement/choose.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tools/bench/step_bench.hpp"
#include "tools/bench/synthetic_training.hpp"

namespace spillway::bench {
namespace {

using plan::OpIndex;
using plan::OpKind;

constexpr Bytes kUnlimited{std::numeric_limits<std::int64_t>::max()};

/// The FWD-BWD ops of a plan, and the dependencies among them.
plan::StepPlan compute_only(const plan::StepPlan& plan) {
  constexpr OpIndex kLeftOut = ~OpIndex{0};
  plan::StepPlan result;
  result.accesses = plan.accesses;
  std::vector<OpIndex> place(plan.ops.size(), kLeftOut);
  for (OpIndex i = 0; i < plan.ops.size(); ++i) {
    plan::Op op = plan.ops[i];
    const bool computes = op.kind == OpKind::forward || op.kind == OpKind::backward ||
                          op.kind == OpKind::loss || op.kind == OpKind::accumulate;
    if (op.lane != plan::Lane::gpu || !computes) continue;
    op.first_dependency = static_cast<std::uint32_t>(result.dependencies.size());
    for (const OpIndex dependency : plan.dependencies_of(plan.ops[i])) {
      if (place[dependency] != kLeftOut) result.dependencies.push_back(place[dependency]);
    }
    op.dependency_count =
        static_cast<std::uint32_t>(result.dependencies.size()) - op.first_dependency;
    place[i] = static_cast<OpIndex>(result.ops.size());
    result.ops.push_back(op);
  }
  return result;
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
      : options_(one_micro_batch(request)),
        model_(engine::make_model_runtime(request.config, options_,
                                          engine::MachineTuning(request.profile).products())),
        workload_(engine::make_workload(request.config, *model_.transformer, options_)),
        budgets_{.device = engine::make_budgets(options_, scratch, workload_).device,
                 .host = kUnlimited,
                 .nvme = kUnlimited},
        placement_(place(request.config)),
        plan_(compute_only(plan::build_training_step(workload_, placement_))),
        backend_(engine::make_backend(options_, budgets_, &wake_)),
        streams_(*backend_),
        constants_(*model_.transformer, *backend_, *streams_.upload),
        slots_(workload_, placement_),
        memory_(plan::make_pools(workload_, placement_), *backend_),
        store_(empty_store(scratch)),
        workers_({.threads = 1, .wake = &wake_}),
        device_math_(engine::make_device_math(options_, *streams_.compute)),
        actions_({.workload = workload_,
                  .placement = placement_,
                  .memory = memory_,
                  .slots = slots_,
                  .transformer = *model_.transformer,
                  .device_math = *device_math_,
                  .workers = workers_,
                  .store = *store_,
                  .activation_store = nullptr,
                  .isa = cpu_adam::best_isa(),
                  .kernel = engine::update_kernel(options_, workload_),
                  .update_prefetch = 0,
                  .decayed = std::vector<std::uint64_t>(workload_.blocks.size())}),
        executor_(plan_, *backend_, streams_, wake_) {
    model_.ops->bind_stream(streams_.compute->native());
    upload_parameters(request.config);
    const std::span<std::byte> tokens = memory_.host({plan::PoolKind::host_tokens});
    fill_random_tokens(
        {reinterpret_cast<std::int32_t*>(tokens.data()), tokens.size() / sizeof(std::int32_t)},
        request.config.vocab_size, options_.seed);
    actions_.step().loss_gradient_scale = 1.0F / static_cast<float>(workload_.tokens);
  }

  double step_seconds() {
    const auto begin = std::chrono::steady_clock::now();
    executor_.run(actions_);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
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
    return options;
  }

  /// The actions want a store; none of these ops uses it.
  static std::unique_ptr<nvme_swap::TileStore> empty_store(const std::filesystem::path& directory) {
    nvme_swap::StoreOptions options;
    options.directories = {directory};
    return nvme_swap::TileStore::create(options, {.tiles = {Bytes{kPageBytes}}});
  }

  [[nodiscard]] plan::Placement place(const model::ModelConfig& config) const {
    return engine::place(config, options_, workload_, budgets_);
  }

  void upload_parameters(const model::ModelConfig& config) {
    const NoiseParameters source(config);
    std::vector<float> values;
    for (std::uint32_t b = 0; b < workload_.blocks.size(); ++b) {
      values.resize(workload_.blocks[b].padded_parameters.value());
      source.read(BlockIndex{b}, ElementCount{}, values);
      const std::span<std::byte> host =
          memory_.host(slots_.tiles_of(plan::PoolKind::host_parameters, b));
      round_parameters(values, workload_.compute, host);
      streams_.upload->upload(
          memory_.device(slots_.tiles_of(plan::PoolKind::resident_parameters, b)), host);
    }
    streams_.upload->synchronize();
  }

  config::TrainOptions options_;
  engine::ModelRuntime model_;
  plan::Workload workload_;
  plan::Budgets budgets_;
  plan::Placement placement_;
  plan::StepPlan plan_;
  // Destroyed last of what runs: everything below may notify it.
  WakeSignal wake_;
  std::unique_ptr<offload::DeviceBackend> backend_;
  engine::Streams streams_;
  engine::ModelConstants constants_;
  engine::StateSlots slots_;
  engine::Memory memory_;
  std::unique_ptr<nvme_swap::TileStore> store_;
  cpu_adam::WorkerPool workers_;
  std::unique_ptr<engine::DeviceMath> device_math_;
  engine::OpActions actions_;
  engine::Executor executor_;
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
  constexpr int kRepetitions = 8;
  config::TrainOptions options = request.options;
  engine::resolve(options, request.config);
  const engine::ModelRuntime model = engine::make_model_runtime(request.config, options);
  const auto backend = engine::make_backend(
      options, {.device = kUnlimited, .host = kUnlimited, .nvme = kUnlimited}, nullptr);
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
  for (int i = 0; i < kRepetitions; ++i) {
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
