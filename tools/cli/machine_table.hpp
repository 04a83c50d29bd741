// `spillway plan --machines`: what each named machine trains, how fast, and what bounds it. All of
// it is predicted from descriptions, so that the table is the same wherever it is made. Control
// thread only; rows are made by as many threads as there are processors.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/config/train_options.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/plan/step_plan.hpp"
#include "tools/bench/machine_description.hpp"

namespace spillway::cli {

struct NamedModel {
  std::string name;
  model::ModelConfig config;
};

/// Returns the models of bench/model_shapes, that of most parameters first.
[[nodiscard]] std::vector<NamedModel> models_by_size();

struct TableRequest {
  std::vector<std::string> machines;
  std::vector<NamedModel> models;  ///< of these a row has the first that fits
  /// Returns what a model is trained with. Called by several threads at once.
  std::function<config::TrainOptions(const model::ModelConfig&)> options;
};

struct TableRow {
  std::string name;
  bench::MachineDescription machine;
  std::string model;  ///< empty: none fits
  std::uint64_t parameters = 0;
  double tokens_per_second = 0;
  double step_seconds = 0;
  plan::Lane bounding = plan::Lane::gpu;
  plan::Budgets taken;  ///< bytes of each tier
  std::string refusal;  ///< of the last model, where none fits
};

/// Returns a row for each machine. A model whose longest context the options exceed is passed over,
/// unless it is the only one. Throws what `make_plan` throws but `Error{does_not_fit}`.
[[nodiscard]] std::vector<TableRow> make_table(const TableRequest& request);

[[nodiscard]] std::string to_text(const std::vector<TableRow>& rows);
[[nodiscard]] nlohmann::ordered_json to_json(const std::vector<TableRow>& rows);

}  // namespace spillway::cli
