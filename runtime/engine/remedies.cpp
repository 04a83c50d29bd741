#include "runtime/engine/remedies.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>
#include <variant>

#include "runtime/base/error.hpp"
#include "runtime/engine/planning.hpp"
#include "runtime/engine/workload.hpp"

namespace spillway::engine {
namespace {

using plan::Tier;

/// Parts that a model is still streamed in, where a remedy is looked for.
constexpr std::uint64_t kMostTiles = 65'536;

struct Remedy {
  std::string what;
  TrainOptions options;
};

/// Changes of one kind, the smallest first: the first that fits stands for all.
using Family = std::vector<Remedy>;

template <class Change>
Remedy changed(const TrainOptions& options, std::string what, const Change& change) {
  Remedy remedy{std::move(what), options};
  change(remedy.options);
  return remedy;
}

/// Tiles to try where whole layers, or larger tiles, do not fit: powers of two, largest first.
std::vector<std::uint64_t> operator_tiles(const model::ModelConfig& config,
                                          const TrainOptions& options) {
  std::vector<std::uint64_t> tiles;
  if (config.is_gpt2() || config.tied_head) return tiles;
  std::uint64_t largest = 0, parameters = 0;
  for (const model::BlockLayout& block : model::make_layout(config).blocks) {
    largest = std::max(largest, block.parameters.value());
    parameters += block.parameters.value();
  }
  const std::uint64_t below = options.operator_tile == 0 ? largest : options.operator_tile;
  const std::uint64_t least = std::max(model::least_operator_tile(config), parameters / kMostTiles);
  for (std::uint64_t tile = std::bit_floor(below - 1); tile >= least; tile /= 2) {
    tiles.push_back(tile);
  }
  return tiles;
}

/// Fewer activations at once, by as many rounds more.
Family smaller_micro_batches(const TrainOptions& options) {
  Family list;
  for (std::uint32_t micro = options.micro_batch / 2; micro >= 1; micro /= 2) {
    const std::uint32_t factor = options.micro_batch / micro;
    if (micro * factor != options.micro_batch) continue;
    TrainOptions smaller = options;
    smaller.micro_batch = micro;
    smaller.gradient_accumulation_steps *= factor;
    smaller.rounds *= factor;
    list.push_back({fmt::format("train_micro_batch_size_per_gpu {}, gradient_accumulation_steps {} "
                                "and spillway.rounds {}",
                                micro, smaller.gradient_accumulation_steps, smaller.rounds),
                    smaller});
  }
  return list;
}

/// The same micro-batches in more rounds.
Family more_rounds(const TrainOptions& options) {
  Family list;
  for (std::uint32_t rounds = 2; rounds <= options.gradient_accumulation_steps; ++rounds) {
    if (options.gradient_accumulation_steps % rounds != 0 || rounds <= options.rounds) continue;
    TrainOptions smaller = options;
    smaller.rounds = rounds;
    list.push_back({fmt::format("spillway.rounds {}", rounds), smaller});
  }
  return list;
}

/// Of the optimizer state, in fewer bytes a parameter.
Family smaller_states(const TrainOptions& options) {
  Family list;
  for (const auto format : {StateFormat::split, StateFormat::bf16, StateFormat::int8}) {
    if (format <= options.state_format) continue;
    const bool same = format == StateFormat::split && options.compute == DType::bf16;
    list.push_back(changed(options,
                           fmt::format("{}spillway.state_format {}{}",
                                       options.compute == DType::bf16 ? "" : "bf16 compute with ",
                                       name_of(format), same ? "" : " (other mathematics)"),
                           [&](TrainOptions& o) {
                             o.compute = DType::bf16;
                             o.state_format = format;
                           }));
  }
  return list;
}

Family recomputation(const TrainOptions& options) {
  const bool keeps = options.checkpointing == Checkpointing::keep ||
                     options.checkpointing == Checkpointing::offload;
  if (!keeps) return {};
  return {changed(options, "activation recomputation",
                  [](TrainOptions& o) { o.checkpointing = Checkpointing::recompute; })};
}

/// What the options demand of the device and could leave to the planner.
std::vector<Family> off_the_device(const TrainOptions& options) {
  std::vector<Family> list;
  if (options.state_home == StateHome::device) {
    list.push_back({changed(options, "state on the host",
                            [](TrainOptions& o) { o.state_home = StateHome::host; })});
  }
  if (options.checkpointing == Checkpointing::keep && options.operator_tile == 0) {
    list.push_back(
        {changed(options, "kept activations on the host (spillway.checkpointing offload)",
                 [](TrainOptions& o) { o.checkpointing = Checkpointing::offload; })});
  }
  list.push_back(recomputation(options));
  if (options.activations == StateHome::device) {
    list.push_back({changed(options, "activations on the host (spillway.activations)",
                            [](TrainOptions& o) { o.activations = StateHome::automatic; })});
  }
  if (options.gradient_sums == SumsHome::device) {
    list.push_back({changed(options,
                            "gradients of rounds summed on the host where the device has no room "
                            "(spillway.gradient_sums auto)",
                            [](TrainOptions& o) { o.gradient_sums = SumsHome::automatic; })});
  }
  if (options.residency == Residency::all) {
    list.push_back({changed(options, "streamed parameters",
                            [](TrainOptions& o) { o.residency = Residency::none; })});
  }
  return list;
}

/// Changes that make the tier's need smaller, by kind.
std::vector<Family> usual_remedies(const TrainOptions& options, Tier tier) {
  std::vector<Family> list;
  if (tier == Tier::host && options.state_home != StateHome::nvme) {
    list.push_back({changed(options, "state on disk (--nvme DIR)",
                            [](TrainOptions& o) { o.state_home = StateHome::nvme; })});
  }
  if (tier != Tier::device) list.push_back(smaller_states(options));
  if (tier != Tier::nvme) {
    list.push_back(smaller_micro_batches(options));
    list.push_back(more_rounds(options));
  }
  if (tier == Tier::device) std::ranges::move(off_the_device(options), std::back_inserter(list));
  if (tier == Tier::host) {
    list.push_back(recomputation(options));
    if (options.activations == StateHome::host) {
      list.push_back({changed(options, "activations on disk (spillway.activations nvme)",
                              [](TrainOptions& o) { o.activations = StateHome::nvme; })});
    }
  }
  return list;
}

/// Where nothing else fits: layers in parts, which round differently.
Family layers_in_parts(const model::ModelConfig& config, const TrainOptions& options) {
  Family list;
  for (const std::uint64_t tile : operator_tiles(config, options)) {
    list.push_back(changed(options, fmt::format("spillway.operator_tile {} (other rounding)", tile),
                           [=](TrainOptions& o) {
                             o.operator_tile = tile;
                             o.activations = StateHome::automatic;
                             if (o.checkpointing == Checkpointing::offload) {
                               o.checkpointing = Checkpointing::automatic;
                             }
                           }));
  }
  return list;
}

std::string flag_of(Tier tier) {
  return tier == Tier::device ? "--device-memory"
         : tier == Tier::host ? "--host-memory"
                              : "--nvme (another directory, or more free space)";
}

std::string_view shown_name(Tier tier) {
  return tier == Tier::nvme ? std::string_view("disk") : plan::name_of(tier);
}

/// "device 1.2 GiB, host 3.4 GiB" of a placement.
std::string needs(const plan::Workload& workload, const plan::Placement& placement) {
  const std::vector<plan::MemoryItem> items = plan::memory_items(workload, placement);
  std::vector<std::string> parts;
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    const Bytes bytes = plan::total(items, tier);
    if (bytes == Bytes{}) continue;
    parts.push_back(fmt::format("{} {}", shown_name(tier), format_bytes(bytes)));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// What is said of a remedy, and whether it is enough.
struct Outcome {
  std::string text;
  bool fits = false;
};

Outcome try_remedy(const model::ModelConfig& config, const plan::Budgets& budgets,
                   const Remedy& remedy) {
  const ModelRuntime runtime = make_model_sizes(config, remedy.options);
  const plan::Workload workload = make_workload(config, *runtime.transformer, remedy.options);
  const auto choice = plan::choose_placement(workload, budgets, placement_request(remedy.options));
  if (const auto* placement = std::get_if<plan::Placement>(&choice)) {
    return {fmt::format("{} ({})", remedy.what, needs(workload, *placement)), true};
  }
  const auto& lacks = std::get<plan::Shortage>(choice);
  return {fmt::format("{} with {} of at least {}", remedy.what, flag_of(lacks.tier),
                      format_bytes(lacks.needed)),
          false};
}

/// Of the first of a family that fits, and else of the last. Each needs less than the one before,
/// so few are planned: the last, and those of a bisection where it fits.
Outcome try_family(const model::ModelConfig& config, const plan::Budgets& budgets,
                   const Family& family) {
  if (family.empty()) return {};
  Outcome best = try_remedy(config, budgets, family.back());
  std::size_t first = 0;
  std::size_t fitting = family.size() - 1;
  while (best.fits && first < fitting) {
    const std::size_t middle = first + (fitting - first) / 2;
    Outcome outcome = try_remedy(config, budgets, family[middle]);
    if (outcome.fits) {
      best = std::move(outcome);
      fitting = middle;
    } else {
      first = middle + 1;
    }
  }
  return best;
}

}  // namespace

std::vector<std::string> what_would_fit(const model::ModelConfig& config,
                                        const TrainOptions& options, const plan::Budgets& budgets,
                                        const plan::Shortage& shortage) {
  std::vector<std::string> advice{
      fmt::format("{} of at least {}", flag_of(shortage.tier), format_bytes(shortage.needed))};
  std::vector<std::string> not_enough;
  bool any_fits = false;
  for (const Family& family : usual_remedies(options, shortage.tier)) {
    Outcome outcome = try_family(config, budgets, family);
    if (outcome.text.empty()) continue;
    any_fits = any_fits || outcome.fits;
    (outcome.fits ? advice : not_enough).push_back(std::move(outcome.text));
  }
  if (any_fits) return advice;
  if (shortage.tier == Tier::device) {
    Outcome outcome = try_family(config, budgets, layers_in_parts(config, options));
    if (outcome.fits) {
      advice.push_back(std::move(outcome.text));
      return advice;
    }
  }
  std::ranges::move(not_enough, std::back_inserter(advice));
  return advice;
}

}  // namespace spillway::engine
