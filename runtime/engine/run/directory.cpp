#include "runtime/engine/run/directory.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/config/options_table.hpp"
#include "runtime/engine/sealed_json.hpp"

namespace spillway::engine {
namespace {

using nlohmann::json;

json to_json(const data::FileStamp& stamp) {
  return {{"bytes", stamp.bytes},
          {"inode", stamp.inode},
          {"modified_ns", stamp.modified_ns},
          {"changed_ns", stamp.changed_ns}};
}

data::FileStamp stamp_of(const json& stamp) {
  return {.bytes = stamp.at("bytes"),
          .inode = stamp.at("inode"),
          .modified_ns = stamp.at("modified_ns"),
          .changed_ns = stamp.at("changed_ns")};
}

}  // namespace

void RunDirectory::write_config(const RunConfig& config) const {
  json document;
  document["id"] = to_text(config.id);
  document["model"] = parse_json(model::to_config_json(config.model, config.options.compute),
                                 {.origin = "the model"});
  document["train"] = parse_json(config::to_config_json(config.options), {.origin = "the options"});
  document["data"] = config.data;
  document["data_fingerprint"] = fmt::format("{:016x}", config.identity.fingerprint);
  if (config.identity.stamp) document["data_stamp"] = to_json(*config.identity.stamp);
  document["device"] = {{"name", config.device.name},
                        {"libraries", config.device.libraries},
                        {"algorithms", config.device.algorithms},
                        {"attention", config.device.attention}};
  write_sealed_json(this->config(), document);
}

RunConfig RunDirectory::read_config() const {
  check(std::filesystem::exists(config()), ErrorCode::invalid_argument,
        fmt::format("{} is a run that has lost its config.json; put it back", root_.string()));
  const json document = read_sealed_json(config());
  for (const char* key : {"id", "model", "train", "data", "data_fingerprint"}) {
    check(document.contains(key), ErrorCode::corrupt_data,
          fmt::format("{} has no \"{}\"", config().string(), key));
  }
  RunConfig result;
  const std::string origin = config().string();
  const auto id = parse_run_id(document["id"].get<std::string>());
  check(id.has_value(), ErrorCode::corrupt_data, fmt::format("{}: \"id\" is not a run's", origin));
  result.id = *id;
  result.model = model::parse_model_config(document["model"].dump(), origin);
  result.options = config::parse_train_config(document["train"].dump(), origin).options;
  result.data = document["data"].get<std::string>();
  result.identity.fingerprint =
      std::stoull(document["data_fingerprint"].get<std::string>(), nullptr, 16);
  if (document.contains("data_stamp")) result.identity.stamp = stamp_of(document["data_stamp"]);
  const json device = document.value("device", json::object());
  result.device = {.name = device.value("name", std::string("host")),
                   .libraries = device.value("libraries", std::string()),
                   .algorithms = device.value("algorithms", std::string()),
                   .attention = device.value("attention", std::string())};
  return result;
}

bool RunDirectory::exists() const { return is_there(manifest()); }

std::vector<std::string> differences_in_mathematics(const RunConfig& recorded,
                                                    const RunConfig& now) {
  std::vector<std::string> differences;
  const json before = config::recorded_options(recorded.options);
  const json after = config::recorded_options(now.options);
  json paths = before;
  paths.update(after);
  for (const auto& [path, unused] : paths.items()) {
    const auto value = [&key = path](const json& options) {
      return options.contains(key) ? options[key].dump() : std::string("absent");
    };
    if (value(before) == value(after)) continue;
    differences.push_back(
        fmt::format("{}: {} in the run, {} now", path, value(before), value(after)));
  }
  model::ModelConfig model_before = recorded.model;
  model::ModelConfig model_after = now.model;
  model_before.source_json.clear();  // its spelling is free
  model_after.source_json.clear();
  if (!(model_before == model_after)) differences.emplace_back("the model's config.json differs");
  if (recorded.identity.fingerprint != now.identity.fingerprint) {
    differences.emplace_back("the training tokens differ");
  }
  return differences;
}

void check_same_mathematics(const RunConfig& recorded, const RunConfig& now) {
  const std::vector<std::string> differences = differences_in_mathematics(recorded, now);
  check(differences.empty(), ErrorCode::invalid_argument,
        fmt::format("cannot resume under another mathematics: {}", fmt::join(differences, "; ")));
}

}  // namespace spillway::engine
