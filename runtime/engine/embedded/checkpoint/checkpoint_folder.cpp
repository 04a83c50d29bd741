#include "runtime/engine/embedded/checkpoint/checkpoint_folder.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"
#include "runtime/engine/embedded/checkpoint/checkpoint_description.hpp"

namespace spillway::engine {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "parameters.json";

std::string_view name_of(cpu_adam::Optimizer optimizer) {
  switch (optimizer) {
    case cpu_adam::Optimizer::adam: return "adam";
    case cpu_adam::Optimizer::adagrad: return "adagrad";
    case cpu_adam::Optimizer::lion: return "lion";
    case cpu_adam::Optimizer::sgd: return "sgd";
  }
  return "unknown";
}

CheckpointDescription describe(const EmbeddedOptions& options, const EmbeddedLayout& layout) {
  CheckpointDescription result{.dtype = std::string(spillway::name_of(options.dtype)),
                               .state_format = std::string(spillway::name_of(options.state_format)),
                               .tile_parameters = options.tile_parameters,
                               .optimizers = {},
                               .parameters = {},
                               .updates = {}};
  for (const auto& group : options.groups) result.optimizers.emplace_back(name_of(group.optimizer));
  for (std::size_t i = 0; i < layout.names.size(); ++i) {
    const ParameterRange& range = layout.ranges[i];
    result.parameters.push_back({.name = layout.names[i],
                                 .elements = range.count,
                                 .group = group_of(layout, range),
                                 .block = range.block,
                                 .first = range.first});
  }
  return result;
}

/// Describes parameters as older files do: the group is that of what comes first in the block.
void forget_places(const EmbeddedLayout& layout, CheckpointDescription& description) {
  for (std::size_t i = 0; i < description.parameters.size(); ++i) {
    CheckpointDescription::Parameter& parameter = description.parameters[i];
    parameter.block = parameter.first = std::nullopt;
    parameter.group = layout.groups[layout.ranges[i].block][0].group;
  }
}

void compare_parameters(const fs::path& directory,
                        std::span<const CheckpointDescription::Parameter> saved,
                        std::span<const CheckpointDescription::Parameter> wanted) {
  const auto text = [](std::span<const CheckpointDescription::Parameter> list, std::size_t at) {
    return at < list.size() ? to_text(list[at]) : std::string("none");
  };
  const auto [first, other] = std::ranges::mismatch(saved, wanted);
  if (first == saved.end() && other == wanted.end()) return;
  const auto at = static_cast<std::size_t>(first - saved.begin());
  throw Error(ErrorCode::invalid_argument,
              fmt::format("the checkpoint in {} is of other parameters: number {} is {} there and "
                          "{} here; register the same ones, in the same groups and units, as the "
                          "trainer that saved it",
                          directory.string(), at, text(saved, at), text(wanted, at)));
}

}  // namespace

NewCheckpoint::NewCheckpoint(fs::path directory, std::string description)
    : directory_(std::move(directory)), description_(std::move(description)) {
  MadeDirectories made;
  check(made.make_new(directory_), ErrorCode::invalid_argument,
        fmt::format("{} is there already; save into a folder that does not exist yet",
                    directory_.string()));
  made.keep();
}

NewCheckpoint::~NewCheckpoint() {
  std::error_code ignored;  // it is no checkpoint, whatever is left of it
  if (!complete_) fs::remove_all(directory_, ignored);
}

void NewCheckpoint::complete() {
  write_file_atomically(directory_ / kFile, description_);
  complete_ = true;
}

std::string describe_checkpoint(const fs::path& directory, const EmbeddedOptions& options,
                                const EmbeddedLayout& layout,
                                std::span<const std::uint64_t> updates) {
  CheckpointDescription description = describe(options, layout);
  // The state has one number for all.
  if (std::ranges::adjacent_find(updates, std::ranges::not_equal_to{}) != updates.end()) {
    description.updates.assign(updates.begin(), updates.end());
  }
  return to_text(directory / kFile, description);
}

std::vector<std::uint64_t> check_checkpoint(const fs::path& directory,
                                            const EmbeddedOptions& options,
                                            const EmbeddedLayout& layout) {
  check(is_there(directory / kFile), ErrorCode::invalid_argument,
        fmt::format("there is no checkpoint in {}: {} is missing", directory.string(), kFile));
  CheckpointDescription saved = read_description(directory / kFile);
  CheckpointDescription wanted = describe(options, layout);
  const auto has_place = [](const auto& parameter) { return parameter.block.has_value(); };
  if (std::ranges::none_of(saved.parameters, has_place)) forget_places(layout, wanted);
  const auto compare = [&](std::string_view key, const auto& there, const auto& here) {
    check(there == here, ErrorCode::invalid_argument,
          fmt::format("the checkpoint in {} has {} {}, and this trainer {}: make the trainer as "
                      "that one was made",
                      directory.string(), key, there, here));
  };
  compare("dtype", saved.dtype, wanted.dtype);
  compare("state_format", saved.state_format, wanted.state_format);
  compare("tile_parameters", saved.tile_parameters, wanted.tile_parameters);
  compare("optimizers", saved.optimizers, wanted.optimizers);
  compare_parameters(directory, saved.parameters, wanted.parameters);
  check(saved.updates.empty() || saved.updates.size() == layout.names.size(),
        ErrorCode::corrupt_data,
        fmt::format("{} has {} numbers of updates for {} parameters", (directory / kFile).string(),
                    saved.updates.size(), layout.names.size()));
  return std::move(saved.updates);
}

}  // namespace spillway::engine
