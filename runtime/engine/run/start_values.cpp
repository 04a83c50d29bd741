#include "runtime/engine/run/start_values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "nvme_swap/checksum.hpp"
#include "runtime/base/error.hpp"
#include "runtime/config/schedule.hpp"
#include "runtime/engine/run/contents.hpp"
#include "runtime/model/hf/checkpoint.hpp"
#include "runtime/model/initialize.hpp"

namespace spillway::engine {
namespace {

/// What is as large as this becomes infinite in fp16, whose largest number is 65504.
constexpr float kBeyondFp16 = 65520;

/// So many parts of a block, of so many elements, tell its values from others.
constexpr std::uint64_t kParts = 8;
constexpr std::uint64_t kPartElements = 256;

/// Returns XXH3 over parts of all blocks.
std::uint64_t fingerprint_of(const model::ParameterSource& source,
                             const model::ModelLayout& layout) {
  std::vector<std::uint64_t> parts;
  for (std::uint32_t b = 0; b < layout.blocks.size(); ++b) {
    const std::uint64_t elements = layout.blocks[b].parameters.value();
    std::vector<float> part(std::min(elements, kPartElements));
    for (std::uint64_t i = 0; i < kParts; ++i) {
      const std::uint64_t first = (elements - part.size()) * i / (kParts - 1);
      source.read(BlockIndex{b}, ElementCount{first}, part);
      parts.push_back(nvme_swap::checksum_of(std::as_bytes(std::span(part))));
    }
  }
  return nvme_swap::checksum_of(std::as_bytes(std::span(parts)));
}

/// Returns what tells sources of weights apart: of a run its id; of a checkpoint, or of a program's
/// values, a few numbers of every block.
std::string describe_start(const TrainRequest& request, const RunConfig& config) {
  if (request.from && RunDirectory(*request.from).exists()) {
    return fmt::format("run {}", to_text(RunDirectory(*request.from).read_manifest().id));
  }
  const model::ModelLayout layout = model::make_layout(config.model, config.options.operator_tile);
  if (request.from) {
    const model::CheckpointReader reader(*request.from, config.model, layout);
    return fmt::format("a checkpoint with fingerprint {:016x}", fingerprint_of(reader, layout));
  }
  if (request.initial != nullptr) {
    return fmt::format("values with fingerprint {:016x}", fingerprint_of(*request.initial, layout));
  }
  return "drawn with spillway.seed";
}

}  // namespace

model::ModelConfig model_config_in(const std::filesystem::path& from) {
  return holds_run(RunDirectory(from)) ? RunDirectory(from).read_config().model
                                       : model::load_model_config(from / "config.json");
}

model::ModelConfig model_of(const TrainRequest& request, const RunDirectory& run) {
  if (request.model) return *request.model;
  if (request.from) return model_config_in(*request.from);
  check(request.resume && run.exists(), ErrorCode::invalid_argument,
        "no model: give --model CONFIG_JSON for a new one or --from DIR for a trained one");
  return run.read_config().model;
}

std::uint64_t steps_of(const config::TrainOptions& options, const data::Sampler& sampler,
                       std::uint32_t ranks) {
  if (options.steps > 0) return options.steps;
  const std::uint64_t windows = config::windows_of_step(options) * ranks;
  return std::max<std::uint64_t>(sampler.windows() / windows, 1);
}

std::unique_ptr<model::ParameterSource> initial_parameters(const TrainRequest& request,
                                                           const model::ModelConfig& config,
                                                           const model::ModelLayout& layout,
                                                           std::uint64_t seed) {
  if (request.from) {
    return std::make_unique<model::CheckpointReader>(*request.from, config, layout);
  }
  return std::make_unique<model::RandomInitializer>(config, layout, seed);
}

RunSources sources_of(const TrainRequest& request, const RunConfig& config,
                      const TrainingData& data, std::optional<StepIndex> goes_on_from) {
  if (request.ranks == nullptr) return {};  // nobody compares them
  return {.run = std::filesystem::weakly_canonical(request.run),
          .weights = goes_on_from ? "those of the run" : describe_start(request, config),
          .validation_fingerprint = data.validation_fingerprint};
}

std::vector<std::string> notes_at_start(const model::ModelConfig& config,
                                        const config::ScheduleOptions& given,
                                        const config::TrainOptions& options, std::uint64_t steps) {
  std::vector<std::string> notes;
  if (config.dropout > 0) {
    notes.push_back(
        fmt::format("dropout {} of the model's config.json is trained as 0", config.dropout));
  }
  const std::string end = config::describe_end(given, options.schedule, steps);
  if (!end.empty()) notes.push_back(end);
  return notes;
}

void HeldParameters::read(BlockIndex block, ElementCount first, std::span<float> target) const {
  source_.read(block, first, target);
  if (compute_ != DType::fp16) return;
  const auto held = [](float value) { return std::abs(value) < kBeyondFp16; };  // no NaN either
  const auto found = std::ranges::find_if_not(target, held);
  if (found == target.end()) return;
  const std::uint64_t place = first.value() + static_cast<std::uint64_t>(found - target.begin());
  for (const model::ParameterTensor& tensor : layout_.blocks.at(block.value()).tensors) {
    const bool inside = place < (tensor.first + tensor.count).value();
    check(!inside, ErrorCode::invalid_argument,
          fmt::format("{} has the value {}, and fp16 holds up to 65504; train in bf16 or fp32",
                      tensor.name, *found));
  }
}

void HeldParameters::check_all() const {
  std::vector<float> values(std::size_t{1} << 20);
  for (std::uint32_t block = 0; block < layout_.blocks.size(); ++block) {
    const std::uint64_t end = layout_.blocks[block].padded_parameters.value();
    for (std::uint64_t first = 0; first < end; first += values.size()) {
      const auto count = std::min<std::uint64_t>(values.size(), end - first);
      read(BlockIndex{block}, ElementCount{first}, std::span(values).first(count));
    }
  }
}

}  // namespace spillway::engine
