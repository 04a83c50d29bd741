#include "tools/cli/machine_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>
#include <variant>

#include "runtime/base/error.hpp"
#include "runtime/engine/prepare/place.hpp"
#include "runtime/engine/prepare/resolve.hpp"
#include "runtime/engine/prepare/workload.hpp"
#include "runtime/model/parameter_layout.hpp"
#include "runtime/plan/search/choose.hpp"
#include "tools/bench/model_shapes.hpp"
#include "tools/bench/named_machines.hpp"
#include "tools/cli/plan_making.hpp"

namespace spillway::cli {
namespace {

std::uint64_t parameters_of(const NamedModel& model) {
  return model::make_layout(model.config).parameters().value();
}

/// Whether one window fits, without which no step does. It is found out much faster than a plan is
/// made, or refused with what would help.
bool fits_one_window(const TableRow& row, const model::ModelConfig& config,
                     config::TrainOptions options) {
  options.automatic = {};
  options.micro_batch = 1;
  options.gradient_accumulation_steps = 1;
  options.rounds = 1;
  if (!options.device) options.device = config::DeviceKind::cuda;
  options.device_generation = row.machine.generation;
  engine::resolve(options, config);
  const plan::Budgets budgets{.device = options.device_memory.value_or(row.machine.capacity.device),
                              .host = options.host_memory.value_or(row.machine.capacity.host),
                              .nvme = row.machine.capacity.nvme};
  return std::holds_alternative<plan::Placement>(plan::choose_placement(
      engine::make_workload(config, options), budgets, engine::placement_request(options)));
}

/// Fills in what the model's plan says. Returns whether it fits.
bool take_plan(TableRow& row, const NamedModel& model, const config::TrainOptions& options) {
  try {
    const MadePlan made = make_plan({.options = options,
                                     .model = model.config,
                                     .run = {},
                                     .profile = {},
                                     .machine = row.name,
                                     .compares = false},
                                    [](const std::string&) {});
    const std::vector<plan::MemoryItem> memory = made.plan.memory();
    row.model = model.name;
    row.parameters = parameters_of(model);
    row.step_seconds = made.plan.prediction.step_seconds;
    row.tokens_per_second =
        static_cast<double>(plan::tokens_of_step(made.plan.workload)) / row.step_seconds;
    row.bounding = made.plan.prediction.bounding;
    row.taken = {.device = plan::total(memory, plan::Tier::device),
                 .host = plan::total(memory, plan::Tier::host),
                 .nvme = plan::total(memory, plan::Tier::nvme)};
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::does_not_fit) throw;
    row.refusal = error.what();
    return false;
  }
}

TableRow make_row(const TableRequest& request, const std::string& name) {
  TableRow row;
  row.name = name;
  row.machine = bench::machine_from(name);
  for (const NamedModel& model : request.models) {
    const config::TrainOptions options = request.options(model.config);
    const bool is_last = &model == &request.models.back();  // its refusal has the reason
    const bool passed_over =
        options.context > model.config.max_context || !fits_one_window(row, model.config, options);
    if (passed_over && !is_last) continue;
    if (take_plan(row, model, options)) break;
  }
  return row;
}

double gigabytes(Bytes bytes) { return static_cast<double>(bytes.value()) * 1e-9; }

}  // namespace

std::vector<NamedModel> models_by_size() {
  std::vector<NamedModel> models;
  for (const std::string_view name : bench::model_names()) {
    models.push_back({.name = std::string(name), .config = bench::model_named(name)});
  }
  std::ranges::stable_sort(models, std::ranges::greater{}, parameters_of);
  return models;
}

std::vector<TableRow> make_table(const TableRequest& request) {
  std::vector<TableRow> rows(request.machines.size());
  std::atomic<std::size_t> next = 0;
  std::vector<std::future<void>> workers;
  for (std::size_t i = 0; i < std::max(std::thread::hardware_concurrency(), 1U); ++i) {
    workers.push_back(std::async(std::launch::async, [&] {
      for (std::size_t r = next++; r < rows.size(); r = next++) {
        rows[r] = make_row(request, request.machines[r]);
      }
    }));
  }
  for (std::future<void>& worker : workers) worker.get();
  return rows;
}

std::string to_text(const std::vector<TableRow>& rows) {
  std::string text =
      fmt::format("{:<26} {:>9} {:>7} {:>7} {:>13} {:>10}  {}\n", "machine", "device GB", "host GB",
                  "disk GB", "model", "tokens/s", "bounded by");
  const auto out = std::back_inserter(text);
  for (const TableRow& row : rows) {
    const plan::Budgets& room = row.machine.capacity;
    fmt::format_to(out, "{:<26} {:>9.0f} {:>7.0f} {:>7.0f} ", row.name, gigabytes(room.device),
                   gigabytes(room.host), gigabytes(room.nvme));
    if (row.model.empty()) {
      fmt::format_to(out, "{:>13}\n", "none fits");
      continue;
    }
    fmt::format_to(out, "{:>13} {:>10.0f}  {}\n", row.model, row.tokens_per_second,
                   shown_name(row.bounding, config::DeviceKind::cuda));
  }
  return text;
}

nlohmann::ordered_json to_json(const std::vector<TableRow>& rows) {
  nlohmann::ordered_json document;
  document["kind"] = "machines";
  document["machines"] = nlohmann::ordered_json::array();
  for (const TableRow& row : rows) {
    nlohmann::ordered_json& entry = document["machines"].emplace_back(
        nlohmann::ordered_json{{"name", row.name},
                               {"description", row.machine.name},
                               {"basis", row.machine.basis},
                               {"memory",
                                {{"device", row.machine.capacity.device.value()},
                                 {"host", row.machine.capacity.host.value()},
                                 {"nvme", row.machine.capacity.nvme.value()}}}});
    if (row.model.empty()) {
      entry["model"] = nullptr;
      entry["refusal"] = row.refusal;
      continue;
    }
    entry["model"] = row.model;
    entry["parameters"] = row.parameters;
    entry["tokens_per_second"] = row.tokens_per_second;
    entry["step_seconds"] = row.step_seconds;
    entry["bounding_lane"] = plan::name_of(row.bounding);
    entry["taken"] = {{"device", row.taken.device.value()},
                      {"host", row.taken.host.value()},
                      {"nvme", row.taken.nvme.value()}};
  }
  return document;
}

}  // namespace spillway::cli
