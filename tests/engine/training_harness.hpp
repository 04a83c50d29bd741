// A tiny model and a tiny text, trained in memory: what the engine's tests vary and compare.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/base/random.hpp"
#include "runtime/engine/device/compute_device.hpp"
#include "runtime/engine/prepare/budgets.hpp"
#include "runtime/engine/prepare/place.hpp"
#include "runtime/engine/prepare/workload.hpp"
#include "runtime/engine/training/trainer.hpp"
#include "runtime/model/initialize.hpp"
#include "tests/engine/device_under_test.hpp"

namespace spillway::engine {

/// A directory of its own under the test's temporary directory, removed at the end.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::string& name) {
    std::string pattern = (std::filesystem::temp_directory_path() / (name + ".XXXXXX")).string();
    check(::mkdtemp(pattern.data()) != nullptr, ErrorCode::io_error, "mkdtemp " + pattern);
    path_ = pattern;
  }
  ~ScratchDirectory() { std::filesystem::remove_all(path_); }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline model::ModelConfig tiny_gpt2(std::uint32_t layers = 3) {
  model::ModelConfig config;
  config.family = model::Family::gpt2;
  config.vocab_size = 67;
  config.max_context = 16;
  config.layers = layers;
  config.width = 40;
  config.heads = config.kv_heads = 2;
  config.head_dim = 20;
  config.ffn_width = 160;
  config.tied_head = true;
  return config;
}

inline model::ModelConfig tiny_llama(std::uint32_t layers = 2) {
  model::ModelConfig config;
  config.family = model::Family::llama;
  config.vocab_size = 67;
  config.max_context = 16;
  config.layers = layers;
  config.width = 48;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 12;
  config.ffn_width = 96;
  config.activation = model::Activation::silu;
  config.tied_head = false;
  return config;
}

/// Options of a run of two rounds of two micro-batches, with tiles far smaller than blocks.
inline config::TrainOptions tiny_options() {
  config::TrainOptions options;
  options.device = device_under_test();
  options.micro_batch = 2;
  options.gradient_accumulation_steps = 4;
  options.rounds = 2;
  options.context = 16;
  options.gradient_clipping = 0.5;
  options.schedule.peak_lr = 3e-3;
  options.schedule.total_steps = 100;
  options.adam.weight_decay = 0.1;
  options.tile_parameters = 2 * kLeafParameters;
  options.commit_every = 1;
  options.threads = 2;
  options.compute_threads = 1;
  options.seed = 7;
  return options;
}

/// Tokens with structure to learn: a noisy cycle.
inline void write_tokens(const std::filesystem::path& path, std::uint32_t vocab_size,
                         std::size_t count) {
  std::vector<std::uint16_t> tokens(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t noise = as_u64(random_block(11, {.stream = 0, .index = i}))[0];
    tokens[i] =
        static_cast<std::uint16_t>(noise % 5 == 0 ? noise % vocab_size : i * 7 % vocab_size);
  }
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(tokens.data()),
             static_cast<std::streamsize>(count * sizeof(std::uint16_t)));
}

/// Returns what the tiles of a state that was trained with these options follow from.
inline SavedShape shape_of(const model::ModelConfig& config, const config::TrainOptions& options) {
  SavedShape shape{.model = config,
                   .format = options.state_format,
                   .tile_parameters = ElementCount{options.tile_parameters}};
  for (const auto& block : model::make_layout(config, options.operator_tile).blocks) {
    shape.blocks.push_back(block.padded_parameters);
  }
  return shape;
}

/// What a run leaves behind that must not depend on placement.
struct Outcome {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<float> masters;

  bool operator==(const Outcome& other) const {
    // Bits, not values: -0 and 0 differ, equal NaNs do not.
    const auto same = [](const auto& a, const auto& b) {
      return std::ranges::equal(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
    };
    return same(losses, other.losses) && same(norms, other.norms) && same(masters, other.masters);
  }
};

class TrainingHarness {
 public:
  explicit TrainingHarness(model::ModelConfig config)
      : config_(std::move(config)), scratch_("spillway_training") {
    write_tokens(scratch_.path() / "train.bin", config_.vocab_size, 4000);
    tokens_.emplace(scratch_.path() / "train.bin", data::TokenType::uint16);
  }

  /// Changes what the planner chose, for every trainer from here on.
  std::function<void(const plan::Workload&, plan::Placement&)> adjust_placement;
  std::function<void(nvme_swap::StoreOptions&)> adjust_store;
  /// Algorithms that models on a GPU start with, from here on.
  model::cuda::GemmChoices products;

  [[nodiscard]] const model::ModelConfig& config() const { return config_; }
  [[nodiscard]] const data::TokenFile& tokens() const { return *tokens_; }
  [[nodiscard]] std::filesystem::path new_run() {
    return scratch_.path() / ("run" + std::to_string(runs_++));
  }
  [[nodiscard]] data::Sampler sampler(const config::TrainOptions& options) const {
    return {tokens_->size(), options.context, options.order, options.seed};
  }

  /// A trainer whose state lies in `run`; `budgets` default to plenty.
  [[nodiscard]] std::unique_ptr<Trainer> make(const config::TrainOptions& options,
                                              const std::filesystem::path& run, bool resume = false,
                                              plan::Budgets budgets = {1_GiB, 1_GiB, 1_GiB}) const {
    ModelRuntime model = make_model_runtime(config_, options, {.products = products});
    const plan::Workload workload = make_workload(config_, *model.transformer, options);
    if (options.device_memory) budgets.device = *options.device_memory;
    plan::Placement placement = place(config_, options, workload, budgets);
    if (adjust_placement) adjust_placement(workload, placement);
    nvme_swap::StoreOptions store;
    store.directories = state_directories(options, run);
    store.engine = options.io_engine;
    if (adjust_store) adjust_store(store);
    for (const auto& directory : store.directories) {
      std::filesystem::create_directories(directory);
    }
    EngineSetup setup{.config = config_,
                      .plan = {.options = options,
                               .workload = workload,
                               .budgets = budgets,
                               .placement = placement,
                               .commit_every = options.commit_every},
                      .store = {.options = store, .start = resume ? Start::resumed : Start::anew}};
    auto trainer = std::make_unique<Trainer>(std::move(setup), std::move(model));
    if (!resume) {
      trainer->cycle().initialize(
          model::RandomInitializer(config_, trainer->layout(), options.seed));
    }
    return trainer;
  }

  void steps(Trainer& trainer, const config::TrainOptions& options, int count,
             Outcome& outcome) const {
    const data::Sampler sampler = this->sampler(options);
    for (int i = 0; i < count; ++i) {
      add(trainer.step(*tokens_, sampler), outcome);
    }
    add(trainer.gather_results(), outcome);
  }
  static void add(std::span<const StepResult> results, Outcome& outcome) {
    for (const StepResult& result : results) {
      outcome.losses.push_back(result.loss);
      outcome.norms.push_back(result.grad_norm);
    }
  }

  void finish(Trainer& trainer, Outcome& outcome) const {
    trainer.cycle().commit();
    const auto& blocks = trainer.layout().blocks;
    for (std::uint32_t block = 0; block < blocks.size(); ++block) {
      std::vector<float> masters(blocks[block].padded_parameters.value());
      trainer.cycle().read_masters(block, masters);
      outcome.masters.insert(outcome.masters.end(), masters.begin(), masters.end());
    }
  }

  [[nodiscard]] Outcome train(const config::TrainOptions& options, int count) {
    const auto trainer = make(options, new_run());
    Outcome outcome;
    steps(*trainer, options, count, outcome);
    finish(*trainer, outcome);
    return outcome;
  }

 private:
  model::ModelConfig config_;
  ScratchDirectory scratch_;
  std::optional<data::TokenFile> tokens_;
  int runs_ = 0;
};

}  // namespace spillway::engine
