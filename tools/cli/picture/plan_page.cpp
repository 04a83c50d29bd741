#include "tools/cli/picture/plan_page.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "runtime/plan/step/step_builder.hpp"
#include "tools/cli/picture/step_picture.hpp"

namespace spillway::cli {
namespace {

using nlohmann::ordered_json;

/// A step planned anew with other memory: an entry of `doubling`.
ordered_json with_memory(std::string_view what, PlanRequest request,
                         std::optional<Bytes> config::TrainOptions::*memory, Bytes bytes) {
  request.options.*memory = bytes;
  request.compares = false;
  const MadePlan made = make_plan(request, [](const std::string&) {});
  return {{"what", what}, {"step_seconds", made.plan.prediction.step_seconds}};
}

}  // namespace

ordered_json plan_page(const MadePlan& made, const PlanRequest& request, ordered_json plan) {
  ordered_json picture =
      step_picture(made.plan, plan::build_training_step(made.plan.workload, made.plan.placement,
                                                        {.place = made.plan.place}));
  if (made.machine) {
    picture["doubling"].push_back(with_memory("device memory", request,
                                              &config::TrainOptions::device_memory,
                                              made.plan.budgets.device * 2));
    picture["doubling"].push_back(with_memory(
        "host memory", request, &config::TrainOptions::host_memory, made.plan.budgets.host * 2));
  }
  return {{"plan", std::move(plan)}, {"picture", std::move(picture)}};
}

std::string plan_title(const MadePlan& made, const std::filesystem::path& model) {
  return fmt::format("Plan: {} on {}", model.filename().string(),
                     made.machine ? made.machine->name : "this machine");
}

}  // namespace spillway::cli
