#include "runtime/engine/prepare/automatic.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <optional>
#include <variant>

#include "runtime/base/json.hpp"
#include "runtime/config/keys.hpp"
#include "runtime/engine/prepare/place.hpp"
#include "runtime/engine/prepare/workload.hpp"
#include "runtime/plan/search/choose.hpp"

namespace spillway::engine {
namespace {

/// HF Trainer's per_device_train_batch_size.
constexpr std::uint64_t kDefaultWindows = 8;
constexpr std::uint64_t kMostMicroBatch = 1024;

/// The type that the model's config.json gives its weights; nothing where it does not say.
std::optional<DType> stored_type(const model::ModelConfig& config) {
  const auto source = json_or_null(config.source_json);
  if (!source.is_object()) return std::nullopt;
  for (const char* const key : {"dtype", "torch_dtype"}) {
    const std::string name = source.contains(key) && source[key].is_string()
                                 ? source[key].get<std::string>()
                                 : std::string();
    if (name == "bfloat16") return DType::bf16;
    if (name == "float16") return DType::fp16;
    if (name == "float32") return DType::fp32;
  }
  return std::nullopt;
}

std::string choose_compute(config::TrainOptions& options, const model::ModelConfig& config) {
  const std::optional<DType> stored = stored_type(config);
  options.compute = stored.value_or(DType::bf16);
  // A configuration that leaves fp16 no choice trains fp16 weights in bf16, whose range is larger.
  const bool fp16_is_off = options.compute == DType::fp16 && !options.automatic.fp16;
  if (fp16_is_off) options.compute = DType::bf16;
  if (options.compute == DType::bf16 && options.automatic.state_format) {
    options.state_format = StateFormat::split;
  }
  return fmt::format("bf16.enabled or fp16.enabled \"auto\": compute is {}, {}",
                     config::config_name(options.compute),
                     fp16_is_off ? "for the checkpoint's fp16"
                     : stored    ? "the type of the model's config.json"
                                 : "as the model's config.json names no type");
}

bool fits(const config::TrainOptions& options, const model::ModelConfig& config,
          const plan::Replicas& replicas, const BudgetsFor& budgets) {
  const plan::Workload workload = make_workload(config, options, replicas);
  return std::holds_alternative<plan::Placement>(
      plan::choose_placement(workload, budgets(options, workload), placement_request(options)));
}

/// Returns the number of windows that a rank is to have in a step, and where that comes from, in
/// words.
std::pair<std::uint64_t, std::string> target_of(const config::TrainOptions& options) {
  if (options.automatic.windows > 0) {
    return {options.automatic.windows, "train_batch_size"};
  }
  if (options.tokens_per_step > 0) {
    const std::uint64_t of_rank = options.tokens_per_step / options.automatic.ranks;
    return {std::max<std::uint64_t>(1, of_rank / options.context),
            fmt::format("spillway.tokens_per_step {}", options.tokens_per_step)};
  }
  return {kDefaultWindows, "HF Trainer's default"};
}

std::string choose_micro_batch(config::TrainOptions& options, const model::ModelConfig& config,
                               const plan::Replicas& replicas, const BudgetsFor& budgets) {
  const auto [windows, source] = target_of(options);
  const bool both = options.automatic.accumulation;
  for (std::uint64_t micro = std::min(std::bit_floor(windows), kMostMicroBatch); micro >= 1;
       micro /= 2) {
    config::TrainOptions tried = options;
    tried.micro_batch = static_cast<std::uint32_t>(micro);
    if (both) tried.gradient_accumulation_steps = static_cast<std::uint32_t>(windows / micro);
    const bool whole =
        !both || (windows % micro == 0 && tried.gradient_accumulation_steps % tried.rounds == 0);
    // The last one is taken as it is: the planner's error says what would make it fit.
    if (tried.automatic.rounds) tried.rounds = tried.gradient_accumulation_steps;
    if (micro > 1 && !(whole && fits(tried, config, replicas, budgets))) continue;
    options.micro_batch = tried.micro_batch;
    options.gradient_accumulation_steps = tried.gradient_accumulation_steps;
    break;
  }
  return fmt::format(
      "train_micro_batch_size_per_gpu \"auto\": {}, the largest power of two that fits; "
      "gradient_accumulation_steps {}{}",
      options.micro_batch, options.gradient_accumulation_steps,
      both ? fmt::format(", for {} windows a step ({})", windows, source) : std::string());
}

std::string choose_accumulation(config::TrainOptions& options) {
  const auto [windows, source] = target_of(options);
  const std::uint64_t steps = std::max<std::uint64_t>(1, windows / options.micro_batch);
  options.gradient_accumulation_steps = static_cast<std::uint32_t>(steps);
  return fmt::format("gradient_accumulation_steps \"auto\": {}, for {} windows a step ({})", steps,
                     windows, source);
}

}  // namespace

std::vector<std::string> choose_automatic(config::TrainOptions& options,
                                          const model::ModelConfig& config,
                                          const plan::Replicas& replicas,
                                          const BudgetsFor& budgets) {
  std::vector<std::string> lines;
  const config::AutomaticOptions automatic = options.automatic;
  if (automatic.compute) lines.push_back(choose_compute(options, config));
  if (automatic.micro_batch) {
    lines.push_back(choose_micro_batch(options, config, replicas, budgets));
  } else if (automatic.accumulation) {
    lines.push_back(choose_accumulation(options));
  }
  options.automatic = {};
  options.automatic.rounds = automatic.rounds;
  options.automatic.micro_batch =
      automatic.rounds && automatic.micro_batch && automatic.accumulation;
  validate(options);
  return lines;
}

void take_automatic(config::TrainOptions& options, const config::TrainOptions& recorded) {
  if (options.automatic.compute) {
    options.compute = recorded.compute;
    if (options.automatic.state_format) options.state_format = recorded.state_format;
  }
  if (options.automatic.micro_batch) options.micro_batch = recorded.micro_batch;
  if (options.automatic.rounds) options.rounds = recorded.rounds;
  if (options.automatic.accumulation) {
    options.gradient_accumulation_steps = recorded.gradient_accumulation_steps;
  }
  options.automatic = {};
  const config::PipelineOptions& cut = recorded.pipeline;
  const bool alike = options.pipeline.stages == cut.stages && options.pipeline.chunks == cut.chunks;
  if (options.pipeline.parts.empty() && alike) options.pipeline.parts = cut.parts;
}

}  // namespace spillway::engine
