#include "tools/cli/train_flags.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"
#include "runtime/engine/run/start_values.hpp"
#include "runtime/engine/train_loop.hpp"
#include "tools/bench/model_shapes.hpp"
#include "tools/cli/console.hpp"
#include "tools/cli/hub.hpp"

namespace spillway::cli {
namespace {

constexpr Bytes kLargestConfig = 16_MiB;

}  // namespace

void TrainFlags::add_to(Command command) {
  command
      .add_option("config", config,
                  "This file is the configuration: DeepSpeed's JSON with a section `spillway`")
      .required();
  const Argument architecture = add_model_to(command);
  command.option("--layers").needs(architecture);
  command
      .add_option(
          "--from", from,
          "The run starts from this checkpoint: a directory of Hugging Face, a hub's model in the "
          "local cache, a run, or a checkpoint that a run has kept")
      .excludes(architecture);
  set.add(command, "steps");
  set.add(command, "seed");
  add_machine_to(command);
}

Argument TrainFlags::add_model_to(Command command) {
  command.add_option("--layers", layers,
                     "The model has this many layers instead of its own number");
  return command.add_option(
      "--model", model,
      fmt::format("This is the architecture, with random weights: an HF config.json, or one of {}",
                  fmt::join(bench::model_names(), ", ")));
}

void TrainFlags::add_machine_to(Command command) {
  set.add_compute(command);
  set.add(command, "nvme");
  set.add(command, "threads");
  set.add(command, "isa").environment("SPILLWAY_ISA");
  command
      .add_option("--profile", profile,
                  "This file keeps what `spillway profile` has measured on this machine")
      .capture_default();
}

config::ParsedConfig TrainFlags::parsed(std::uint32_t ranks) const {
  config::ParsedConfig result;
  if (!config.empty()) {
    result =
        config::parse_train_config(read_text_file(config, kLargestConfig), config.string(), ranks);
  }
  set.apply(result.options);
  return result;
}

config::TrainOptions TrainFlags::options() const {
  config::ParsedConfig result = parsed();
  for (const std::string& line : result.notes) tell_note(line);
  return result.options;
}

std::vector<std::string> note_lines(const std::vector<std::string>& notes, bool verbose) {
  const auto changes_nothing = [](const std::string& note) {
    return note.find(": not needed") != std::string::npos;
  };
  const auto unused = std::ranges::count_if(notes, changes_nothing);
  if (verbose || unused < 2) return notes;
  std::vector<std::string> lines;
  std::ranges::remove_copy_if(notes, std::back_inserter(lines), changes_nothing);
  lines.push_back(
      fmt::format("{} keys of the configuration are not needed; -v lists them", unused));
  return lines;
}

std::optional<std::filesystem::path> TrainFlags::checkpoint() const {
  return from.empty() ? std::nullopt : std::optional(find_checkpoint(from));
}

std::optional<model::ModelConfig> TrainFlags::model_config() const {
  std::optional<model::ModelConfig> result;
  if (!model.empty()) result = find_model(model);
  if (const auto directory = checkpoint()) result = engine::model_config_in(*directory);
  if (result && layers > 0) result->layers = layers;
  return result;
}

}  // namespace spillway::cli
