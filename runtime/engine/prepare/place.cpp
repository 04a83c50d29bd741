#include "runtime/engine/prepare/place.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <utility>
#include <variant>

#include "runtime/base/error.hpp"
#include "runtime/engine/prepare/budgets.hpp"
#include "runtime/engine/prepare/remedies.hpp"
#include "runtime/plan/search/choose.hpp"

namespace spillway::engine {
namespace {

using plan::Tier;

std::optional<plan::Tier> tier_of(config::StateHome home) {
  switch (home) {
    case config::StateHome::automatic: break;
    case config::StateHome::device: return plan::Tier::device;
    case config::StateHome::host: return plan::Tier::host;
    case config::StateHome::nvme: return plan::Tier::nvme;
  }
  return std::nullopt;
}

/// What would help ranks that share out a step, of what they do not do already.
std::vector<std::string> remedies_of_ranks(const config::TrainOptions& options,
                                           const plan::Workload& workload, Tier tier) {
  const bool of_device = tier == Tier::device;
  std::vector<std::string> list;
  // Each rank has the parameters of its stage on its device unless they are gathered.
  const bool shares = workload.gathers() || workload.stage.count > 1 || workload.tensor.count > 1;
  if (shares || (!of_device && options.zero_stage > 0)) list.emplace_back("more ranks");
  if (!workload.gathers()) list.emplace_back("zero_optimization.stage 3");
  if (tier != Tier::nvme && options.micro_batch > 1) list.emplace_back("a smaller micro-batch");
  if (!of_device && options.state_format != StateFormat::int8) {
    list.emplace_back("a shorter state_format");
  }
  if (list.empty()) list.emplace_back("a larger memory");
  return list;
}

}  // namespace

plan::PlacementRequest placement_request(const config::TrainOptions& options) {
  plan::PlacementRequest request;
  request.state = tier_of(options.state_home);
  request.activations = tier_of(options.activations);
  // A step of a pipeline that stays full leaves boundaries to the next one.
  if (has_stale_weights(options.pipeline.schedule)) request.activations = plan::Tier::device;
  if (options.residency != config::Residency::automatic) {
    request.resident = options.residency == config::Residency::all;
  }
  if (options.checkpointing != config::Checkpointing::automatic) {
    request.keep = options.checkpointing != config::Checkpointing::recompute;
    request.offload = config::offloads(options.checkpointing);
    const bool on_disk = options.checkpointing == config::Checkpointing::nvme;
    request.offload_to = on_disk ? plan::Tier::nvme : plan::Tier::host;
  }
  if (options.gradient_sums != config::SumsHome::automatic) {
    request.sums = options.gradient_sums == config::SumsHome::device;
  }
  request.order = options.work_order;
  request.format = options.state_format;
  request.tile_parameters = ElementCount{options.tile_parameters};
  request.prefetch = options.prefetch;
  request.commits = options.commits;
  return request;
}

plan::Placement place(const model::ModelConfig& config, const config::TrainOptions& options,
                      const plan::Workload& workload, const plan::Budgets& budgets,
                      const BudgetsFor& budgets_for) {
  auto choice = plan::choose_placement(workload, budgets, placement_request(options));
  if (auto* placement = std::get_if<plan::Placement>(&choice)) return std::move(*placement);
  const plan::Shortage shortage = std::get<plan::Shortage>(choice);

  const bool of_device = shortage.tier == Tier::device;
  const std::uint32_t ranks = workload.grid().ranks();
  check(ranks == 1, ErrorCode::does_not_fit,
        fmt::format("does not fit: {} memory of each of {} ranks needs at least {} and the budget "
                    "is {}; use {}",
                    plan::name_of(shortage.tier), ranks, format_bytes(shortage.needed),
                    format_bytes(shortage.budget),
                    fmt::join(remedies_of_ranks(options, workload, shortage.tier), " or ")));
  const std::optional<Bytes> asked = of_device ? options.device_memory : options.host_memory;
  const bool of_host_memory =
      shortage.tier == Tier::host || (of_device && options.device != config::DeviceKind::cuda);
  throw Error(ErrorCode::does_not_fit,
              fmt::format("does not fit: {} memory needs at least {} and the budget is {}{}. What "
                          "would make it fit: {}",
                          plan::name_of(shortage.tier), format_bytes(shortage.needed),
                          format_bytes(shortage.budget),
                          of_host_memory ? why_this_budget(asked, shortage.budget) : "",
                          fmt::join(what_would_fit(config, options, budgets, shortage, budgets_for),
                                    "; or ")));
}

}  // namespace spillway::engine
