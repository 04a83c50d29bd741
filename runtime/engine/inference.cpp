#include "runtime/engine/inference.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/engine/prepare/budgets.hpp"
#include "runtime/engine/prepare/resolve.hpp"
#include "runtime/engine/prepare/workload.hpp"
#include "runtime/plan/placement/pools.hpp"
#include "runtime/plan/step/step_builder.hpp"

namespace spillway::engine {
namespace {

config::TrainOptions train_options(const model::ModelConfig& config,
                                   const InferenceOptions& options) {
  config::TrainOptions train;
  train.compute = options.compute;
  train.micro_batch = options.batch;
  train.context = options.context;
  train.compute_threads = options.compute_threads;
  train.device = options.device;
  train.device_memory = options.device_memory;
  train.host_memory = options.host_memory;
  train.threads = 1;  // there is no update
  resolve(train, config);
  return train;
}

/// Returns the bytes of the logits of one position.
Bytes row_bytes(const model::ModelConfig& config) {
  return Bytes{std::uint64_t{config.vocab_size} * sizeof(float)};
}

/// Returns the bytes from the logits of one position to those of the next, on the device.
Bytes row_stride_bytes(const model::ModelConfig& config, const model::Ops& ops) {
  return Bytes{ops.logits_stride(config.vocab_size) * sizeof(float)};
}

/// Returns what lies in memory at once: the pools, and while parameters are read a block of them in
/// fp32 and rounded, on its way to the device.
FixedNeeds needs(const plan::Workload& workload, const plan::Pools& pools, Bytes source) {
  const std::vector<plan::MemoryItem> items = plan::memory_items(pools);
  const std::uint64_t block = plan::largest_block(workload).value();
  const Bytes kept = plan::total(items, plan::Tier::host);
  return {.device = plan::total(items, plan::Tier::device),
          .host = Bytes{block * (sizeof(float) + size_of(workload.compute))} + source +
                  std::max(kept, workload.constant_bytes)};
}

}  // namespace

Inference::Inference(const model::ModelConfig& config, const InferenceOptions& options,
                     const model::ParameterSource& source) {
  config::TrainOptions train = train_options(config, options);
  model_ = make_model_runtime(config, train, {.products = products_of(options.trained_on)});
  plan::Workload workload = make_workload(config, *model_.transformer, train);
  const bool generates = options.use == InferenceUse::generation;
  if (generates) workload.logits_bytes = row_stride_bytes(config, *model_.ops) * train.context;
  plan::Placement placement = plan::lean_placement(workload);
  plan::StepPlan plan = plan::build_evaluation(workload, placement);
  plan::Pools pools = plan::used_by(plan, plan::make_pools(workload, placement));
  FixedNeeds needed = needs(workload, pools, options.source_bytes);
  if (generates) needed.host += row_bytes(config);
  check_fits(needed, train, read_memory_budget(), free_memory_of_device(train),
             "fewer tokens at once (eval: --batch and --context; generate: --tokens and a shorter "
             "prompt)");
  // The whole model is resident and every allocation below is part of the needs.
  const plan::Budgets budgets{.device = needed.device, .host = needed.host, .nvme = {}};
  EngineSetup setup{.config = config,
                    .plan = {.options = std::move(train),
                             .workload = std::move(workload),
                             .budgets = budgets,
                             .placement = std::move(placement)}};
  engine_ = std::make_unique<StepEngine>(std::move(setup), model_, std::move(pools));
  executor_ = engine_->prepare(std::move(plan));
  if (generates) logits_ = {engine_->backend(), row_bytes(config)};
  load(source);
}

Inference::~Inference() = default;

void Inference::load(const model::ParameterSource& source) {
  const plan::Workload& workload = engine_->workload();
  offload::Stream& stream = *engine_->streams().upload;
  std::vector<float> masters;
  for (std::uint32_t block = 0; block < workload.blocks.size(); ++block) {
    masters.resize(workload.blocks[block].padded_parameters.value());
    source.read(BlockIndex{block}, ElementCount{}, masters);
    const offload::PinnedMemory rounded(engine_->backend(),
                                        Bytes{masters.size() * size_of(workload.compute)});
    cpu_adam::cast_parameters(cpu_adam::best_isa(), workload.compute, masters.data(),
                              rounded.host().data(), masters.size());
    const plan::Buffer tiles =
        engine_->slots().tiles_of(plan::PoolKind::resident_parameters, block);
    stream.upload(engine_->memory().device(tiles), rounded.host());
    stream.synchronize();
  }
}

Evaluation Inference::evaluate(const data::TokenFile& tokens) {
  SPILLWAY_ASSERT(logits_.size() == Bytes{} && "this model is loaded for generation");
  return engine::evaluate(*engine_, *executor_, tokens);
}

std::span<const float> Inference::next_logits(std::span<const std::int32_t> tokens) {
  check(logits_.size() > Bytes{} && !tokens.empty(), ErrorCode::invalid_argument,
        "generation needs a prompt and works on one window at a time");
  const data::MicroBatch batch = engine_->batch(0);
  const std::size_t used = std::min<std::size_t>(tokens.size(), batch.context);
  std::ranges::fill(batch.tokens, 0);
  // Attention is causal: what stands after the last token does not reach it.
  std::ranges::copy(tokens.last(used), batch.tokens.begin());
  executor_->run(engine_->actions());
  const std::size_t row = logits_.size().value();
  const offload::DeviceSpan<std::byte> all = engine_->memory().device({plan::PoolKind::logits});
  offload::Stream& stream = *engine_->streams().download;
  stream.download(logits_.host(), all.subspan((used - 1) * (all.size() / batch.context), row));
  stream.synchronize();
  return {reinterpret_cast<const float*>(logits_.host().data()), row / sizeof(float)};
}

}  // namespace spillway::engine
