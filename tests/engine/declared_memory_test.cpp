// An op reaches no memory that it does not declare: a step whose ops each find all other memory
// filled with NaNs, and lose what they write there, leaves the same bits as any other step.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "runtime/engine/step/step_engine.hpp"
#include "runtime/engine/training/state_io.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine::declared_memory_test {
namespace {

using plan::PoolKind;
using plan::Tier;

/// The bytes of a pool, whose device memory the host backend can reach; empty if it has none.
std::span<std::byte> bytes_of(const Memory& memory, std::size_t p) {
  const auto kind = static_cast<PoolKind>(p);
  const plan::Pool& pool = memory.pool(kind);
  const Tier tier = plan::tier_of(kind);
  if (pool.bytes() == Bytes{} || tier == Tier::nvme || kind == PoolKind::constants) return {};
  if (tier == Tier::host) return memory.all_host(kind);
  const auto all = memory.device({kind, 0, static_cast<std::uint32_t>(pool.ends.size())});
  return {all.address(), all.size()};
}

using Image = std::vector<std::vector<std::byte>>;

Image image_of(const Memory& memory) {
  Image image;
  for (std::size_t p = 0; p < plan::kPoolCount; ++p) {
    const auto bytes = bytes_of(memory, p);
    image.emplace_back(bytes.begin(), bytes.end());
  }
  return image;
}

/// Runs the ops one at a time, each with nothing to find but what it declares.
class Blindfold final : public OpPerformer {
 public:
  Blindfold(OpActions& actions, const Memory& memory) : actions_(actions), memory_(memory) {}

  void begin(const plan::StepPlan& plan) override {
    plan_ = &plan;
    actions_.begin(plan);
  }
  [[nodiscard]] bool skips(const plan::Op& op) const override { return actions_.skips(op); }
  void enqueue(const plan::Op& op, offload::Stream& stream) override {
    hide(op);
    actions_.enqueue(op, stream);
    stream.synchronize();
    show(op);
  }
  [[nodiscard]] Ticket start(const plan::Op& op) override {
    hide(op);
    actions_.start(op).wait();
    show(op);
    return {};
  }

 private:
  void hide(const plan::Op& op) {
    before_ = image_of(memory_);
    for (std::size_t p = 0; p < plan::kPoolCount; ++p) {
      std::ranges::fill(bytes_of(memory_, p), std::byte{0xff});
    }
    each_declared(op, [&](std::size_t p, std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) bytes_of(memory_, p)[i] = before_[p][i];
    });
  }

  void show(const plan::Op& op) {
    each_declared(op, [&](std::size_t p, std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) before_[p][i] = bytes_of(memory_, p)[i];
    });
    for (std::size_t p = 0; p < plan::kPoolCount; ++p) {
      std::ranges::copy(before_[p], bytes_of(memory_, p).begin());
    }
  }

  template <class Visit>
  void each_declared(const plan::Op& op, const Visit& visit) const {
    for (const plan::Access& access : plan_->accesses_of(op)) {
      const auto p = static_cast<std::size_t>(access.buffer.pool);
      if (bytes_of(memory_, p).empty()) continue;
      const plan::Pool& pool = memory_.pool(access.buffer.pool);
      visit(p, pool.offset(access.buffer.first),
            pool.offset(access.buffer.first + access.buffer.count));
    }
  }

  OpActions& actions_;
  const Memory& memory_;
  const plan::StepPlan* plan_ = nullptr;
  Image before_;
};

/// The engine of a run, without its trainer.
class BareEngine {
 public:
  BareEngine(const TrainingHarness& harness, const config::TrainOptions& options,
             const std::filesystem::path& directory)
      : model_(make_model_runtime(harness.config(), options)),
        engine_(setup(harness, options, directory), model_),
        executor_(
            engine_.prepare(plan::build_recorded_step(engine_.workload(), engine_.placement()))) {
    for (std::size_t p = 0; p < plan::kPoolCount; ++p) {
      std::ranges::fill(bytes_of(engine_.memory(), p), std::byte{0});
    }
    StateIo(engine_).initialize(
        model::RandomInitializer(harness.config(), model_.transformer->layout(), 7));
    const auto tokens = engine_.memory().all_host(PoolKind::host_tokens);
    for (std::size_t i = 0; i < tokens.size(); i += sizeof(std::int32_t)) {
      tokens[i] =
          static_cast<std::byte>(i / sizeof(std::int32_t) * 7 % harness.config().vocab_size);
    }
  }

  /// Two steps, of which the second applies the update of the first and writes all state.
  Image two_steps(bool blindfolded) {
    OpActions& actions = engine_.actions();
    Blindfold blindfold(actions, engine_.memory());
    OpPerformer& performer = blindfolded ? static_cast<OpPerformer&>(blindfold) : actions;
    StepDecisions step{.loss_gradient_scale = 1e-2F, .commit = {.payload = {std::byte{1}}}};
    actions.follow(step);
    executor_->run(performer);
    step.update.pending = true;
    step.update.groups.assign(kNativeGroups,
                              cpu_adam::make_scalars(engine_.options().adam, 1, 1.0));
    step.disk.commits = true;
    executor_->run(performer);
    return image_of(engine_.memory());
  }

 private:
  [[nodiscard]] EngineSetup setup(const TrainingHarness& harness,
                                  const config::TrainOptions& options,
                                  const std::filesystem::path& directory) const {
    const plan::Workload workload = make_workload(harness.config(), *model_.transformer, options);
    const plan::Budgets budgets{1_GiB, 1_GiB, 1_GiB};
    plan::Placement placement = place(harness.config(), options, workload, budgets);
    if (harness.adjust_placement) harness.adjust_placement(workload, placement);
    nvme_swap::StoreOptions store;
    store.directories = {directory};
    store.engine = options.io_engine;
    std::filesystem::create_directories(directory);
    return {.config = harness.config(),
            .plan = {.options = options,
                     .workload = workload,
                     .budgets = budgets,
                     .placement = placement},
            .store = {.options = store}};
  }

  ModelRuntime model_;
  StepEngine engine_;
  std::unique_ptr<Executor> executor_;
};

void expect_no_other_memory(TrainingHarness& harness, const config::TrainOptions& options) {
  if (options.device == config::DeviceKind::cuda)
    GTEST_SKIP() << "the CPU does not reach device memory";
  const Image seeing = BareEngine(harness, options, harness.new_run()).two_steps(false);
  const Image blindfolded = BareEngine(harness, options, harness.new_run()).two_steps(true);
  for (std::size_t p = 0; p < plan::kPoolCount; ++p) {
    // What an op leaves in its workspace is nothing that another one reads.
    if (static_cast<PoolKind>(p) == PoolKind::workspace) continue;
    EXPECT_TRUE(seeing[p] == blindfolded[p]) << plan::name_of(static_cast<PoolKind>(p));
  }
}

TEST(DeclaredMemory, IsAllThatStreamedBlocksReach) {
  TrainingHarness harness(tiny_gpt2());
  config::TrainOptions options = tiny_options();
  options.compute = DType::bf16;
  options.state_format = StateFormat::split;
  options.residency = config::Residency::none;
  harness.adjust_placement = [](const plan::Workload&, plan::Placement& placement) {
    // State in each tier but the device's, boundaries in each tier, activations recomputed.
    for (std::size_t b = 0; b < placement.blocks.size(); ++b) {
      placement.blocks[b].state = b % 2 == 0 ? Tier::nvme : Tier::host;
      placement.blocks[b].output = b == 1 ? Tier::nvme : Tier::host;
      placement.blocks[b].saved.reset();
      placement.blocks[b].gradients = b == 2 ? Tier::device : Tier::host;
    }
    placement.boundary_slots = 3;
    placement.boundary_staging = 1;
    placement.state_slots = 2;
  };
  expect_no_other_memory(harness, options);
}

TEST(DeclaredMemory, IsAllThatResidentBlocksReach) {
  TrainingHarness harness(tiny_llama(3));
  config::TrainOptions options = tiny_options();
  options.residency = config::Residency::all;
  harness.adjust_placement = [](const plan::Workload&, plan::Placement& placement) {
    for (std::size_t b = 0; b < placement.blocks.size(); ++b) {
      placement.blocks[b].state = b == 1 ? Tier::device : Tier::host;
      placement.blocks[b].saved = b == 2 ? Tier::host : b == 3 ? Tier::nvme : Tier::device;
      placement.blocks[b].gradients = b == 1 ? Tier::device : Tier::host;
    }
    placement.saved_slots = 2;
    placement.saved_staging = 1;
  };
  expect_no_other_memory(harness, options);
}

TEST(DeclaredMemory, IsAllThatTilesReach) {
  for (const bool tied : {false, true}) {
    model::ModelConfig config = tiny_llama(2);
    config.tied_head = tied;
    TrainingHarness harness(config);
    config::TrainOptions options = tiny_options();
    options.compute = DType::bf16;
    options.operator_tile = 2 * kLeafParameters;
    options.state_home = config::StateHome::host;
    options.residency = config::Residency::none;
    if (tied) options.activations = config::StateHome::nvme;
    expect_no_other_memory(harness, options);
  }
}

}  // namespace
}  // namespace spillway::engine::declared_memory_test
