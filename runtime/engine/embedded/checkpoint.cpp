#include "runtime/engine/embedded/checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"
#include "runtime/engine/run/sealed_json.hpp"

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

/// Returns everything that the bytes of the state follow from.
nlohmann::json describe(const EmbeddedOptions& options, std::span<const std::string> names,
                        const EmbeddedLayout& layout) {
  nlohmann::json document;
  document["dtype"] = spillway::name_of(options.dtype);
  document["state_format"] = spillway::name_of(options.state_format);
  document["tile_parameters"] = options.tile_parameters;
  nlohmann::json& optimizers = document["optimizers"] = nlohmann::json::array();
  for (const auto& group : options.groups) optimizers.push_back(name_of(group.optimizer));
  nlohmann::json& parameters = document["parameters"] = nlohmann::json::array();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const EmbeddedPlace& place = layout.places[i];
    parameters.push_back({{"name", names[i]},
                          {"elements", place.count},
                          {"group", layout.groups[place.block][0].group}});
  }
  return document;
}

void compare_parameters(const fs::path& directory, const nlohmann::json& saved,
                        const nlohmann::json& wanted) {
  const auto refuse = [&](std::size_t at) {
    const auto text = [at](const nlohmann::json& list) {
      return at < list.size() ? list[at].dump() : std::string("none");
    };
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the checkpoint in {} is of other parameters: number {} is {} there "
                            "and {} here",
                            directory.string(), at, text(saved), text(wanted)));
  };
  const std::size_t most = std::max(saved.size(), wanted.size());
  for (std::size_t i = 0; i < most; ++i) {
    if (i >= saved.size() || i >= wanted.size() || saved[i] != wanted[i]) refuse(i);
  }
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
                                std::span<const std::string> names, const EmbeddedLayout& layout,
                                std::span<const std::uint64_t> updates) {
  nlohmann::json document = describe(options, names, layout);
  // The state has one number for all.
  if (std::ranges::adjacent_find(updates, std::ranges::not_equal_to{}) != updates.end()) {
    document["updates"] = std::vector<std::uint64_t>(updates.begin(), updates.end());
  }
  return sealed_text(directory / kFile, std::move(document));
}

std::vector<std::uint64_t> check_checkpoint(const fs::path& directory,
                                            const EmbeddedOptions& options,
                                            std::span<const std::string> names,
                                            const EmbeddedLayout& layout) {
  check(fs::exists(directory / kFile), ErrorCode::invalid_argument,
        fmt::format("there is no checkpoint in {}: {} is missing", directory.string(), kFile));
  const nlohmann::json saved = read_sealed_json(directory / kFile);
  const nlohmann::json wanted = describe(options, names, layout);
  for (const char* key : {"dtype", "state_format", "tile_parameters", "optimizers"}) {
    check(saved.at(key) == wanted.at(key), ErrorCode::invalid_argument,
          fmt::format("the checkpoint in {} has {} {}, and this trainer {}", directory.string(),
                      key, saved.at(key).dump(), wanted.at(key).dump()));
  }
  compare_parameters(directory, saved.at("parameters"), wanted.at("parameters"));
  if (!saved.contains("updates")) return {};
  auto updates = saved.at("updates").get<std::vector<std::uint64_t>>();
  check(updates.size() == names.size(), ErrorCode::corrupt_data,
        fmt::format("{} has {} numbers of updates for {} parameters", (directory / kFile).string(),
                    updates.size(), names.size()));
  return updates;
}

}  // namespace spillway::engine
