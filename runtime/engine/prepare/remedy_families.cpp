#include "runtime/engine/prepare/remedy_families.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "runtime/model/parameter_layout.hpp"

namespace spillway::engine {
namespace {

using plan::Tier;
using Kind = RemedyKind;
using Family = RemedyFamily;

/// Parts that a model is still streamed in, where a remedy is looked for.
constexpr std::uint64_t kMostTiles = 65'536;

template <class Change>
Remedy changed(const config::TrainOptions& options, std::string what, const Change& change) {
  Remedy remedy{std::move(what), options};
  change(remedy.options);
  return remedy;
}

template <class Change>
Family one(Kind kind, const config::TrainOptions& options, std::string what, const Change& change) {
  return {.kind = kind, .remedies = {changed(options, std::move(what), change)}};
}

/// Tiles to try where whole layers, or larger tiles, do not fit: powers of two, largest first.
std::vector<std::uint64_t> operator_tiles(const model::ModelConfig& config,
                                          const config::TrainOptions& options) {
  std::vector<std::uint64_t> tiles;
  if (config.is_gpt2()) return tiles;
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
Family smaller_micro_batches(const config::TrainOptions& options) {
  Family list{.kind = Kind::batches, .remedies = {}};
  for (std::uint32_t micro = options.micro_batch / 2; micro >= 1; micro /= 2) {
    const std::uint32_t factor = options.micro_batch / micro;
    if (micro * factor != options.micro_batch) continue;
    config::TrainOptions smaller = options;
    smaller.micro_batch = micro;
    smaller.gradient_accumulation_steps *= factor;
    std::string what =
        fmt::format("train_micro_batch_size_per_gpu {}, gradient_accumulation_steps {}", micro,
                    smaller.gradient_accumulation_steps);
    if (!rounds_are_micro_batches(options)) {
      smaller.rounds *= factor;
      what += fmt::format(" and spillway.rounds {}", smaller.rounds);
    } else {
      smaller.rounds = 1;
    }
    list.remedies.push_back({std::move(what), std::move(smaller)});
  }
  return list;
}

/// The same micro-batches in more rounds.
Family more_rounds(const config::TrainOptions& options) {
  Family list{.kind = Kind::batches, .remedies = {}};
  if (rounds_are_micro_batches(options)) return list;
  for (std::uint32_t rounds = 2; rounds <= options.gradient_accumulation_steps; ++rounds) {
    if (options.gradient_accumulation_steps % rounds != 0 || rounds <= options.rounds) continue;
    config::TrainOptions smaller = options;
    smaller.rounds = rounds;
    list.remedies.push_back({fmt::format("spillway.rounds {}", rounds), smaller});
  }
  return list;
}

/// Keeps the optimizer state in fewer bytes a parameter.
Family smaller_states(const config::TrainOptions& options) {
  Family list{.kind = Kind::state_format, .remedies = {}};
  for (const auto format : {StateFormat::split, StateFormat::bf16, StateFormat::int8}) {
    if (format <= options.state_format) continue;
    const bool same = format == StateFormat::split && options.compute == DType::bf16;
    list.remedies.push_back(
        changed(options,
                fmt::format("{}spillway.state_format {}{}",
                            options.compute == DType::bf16 ? "" : "bf16 compute with ",
                            name_of(format), same ? "" : " (other mathematics)"),
                [&](config::TrainOptions& o) {
                  o.compute = DType::bf16;
                  o.state_format = format;
                }));
  }
  return list;
}

Family recomputation(const config::TrainOptions& options) {
  const bool keeps = options.checkpointing == config::Checkpointing::keep ||
                     config::offloads(options.checkpointing);
  if (!keeps) return {.kind = Kind::checkpointing, .remedies = {}};
  return one(Kind::checkpointing, options, "activation recomputation",
             [](config::TrainOptions& o) { o.checkpointing = config::Checkpointing::recompute; });
}

/// What the options demand of the device and could leave to the planner.
std::vector<Family> off_the_device(const config::TrainOptions& options) {
  std::vector<Family> list;
  if (options.state_home == config::StateHome::device) {
    list.push_back(one(Kind::state_home, options, "state on the host",
                       [](config::TrainOptions& o) { o.state_home = config::StateHome::host; }));
  }
  if (options.checkpointing == config::Checkpointing::keep && options.operator_tile == 0) {
    list.push_back(
        one(Kind::checkpointing, options,
            "saved activations on the host (spillway.checkpointing offload)",
            [](config::TrainOptions& o) { o.checkpointing = config::Checkpointing::offload; }));
  }
  list.push_back(recomputation(options));
  if (options.activations == config::StateHome::device) {
    list.push_back(
        one(Kind::activations, options, "activations on the host (spillway.activations)",
            [](config::TrainOptions& o) { o.activations = config::StateHome::automatic; }));
  }
  if (options.gradient_sums == config::SumsHome::device) {
    list.push_back(
        one(Kind::sums, options,
            "gradients of rounds summed on the host where the device has no room "
            "(spillway.gradient_sums auto)",
            [](config::TrainOptions& o) { o.gradient_sums = config::SumsHome::automatic; }));
  }
  if (options.residency == config::Residency::all &&
      options.state_home != config::StateHome::device) {
    list.push_back(one(Kind::residency, options, "streamed parameters",
                       [](config::TrainOptions& o) { o.residency = config::Residency::none; }));
  }
  return list;
}

}  // namespace

bool exclude_each_other(RemedyKind first, RemedyKind second) {
  // What layers in parts save for backward stays on the device.
  return first == second || (first == Kind::checkpointing && second == Kind::parts);
}

std::vector<RemedyFamily> usual_remedies(const config::TrainOptions& options, Tier tier) {
  std::vector<Family> list;
  if (tier == Tier::host && options.state_home != config::StateHome::nvme) {
    list.push_back(one(Kind::state_home, options, "state on disk (--nvme DIR)",
                       [](config::TrainOptions& o) { o.state_home = config::StateHome::nvme; }));
  }
  if (tier != Tier::device) list.push_back(smaller_states(options));
  if (tier != Tier::nvme) {
    list.push_back(smaller_micro_batches(options));
    list.push_back(more_rounds(options));
  }
  if (tier == Tier::device) std::ranges::move(off_the_device(options), std::back_inserter(list));
  if (tier == Tier::host) {
    if (options.checkpointing == config::Checkpointing::offload) {
      list.push_back(one(
          Kind::checkpointing, options, "saved activations on disk (spillway.checkpointing nvme)",
          [](config::TrainOptions& o) { o.checkpointing = config::Checkpointing::nvme; }));
    }
    list.push_back(recomputation(options));
    if (options.activations == config::StateHome::host) {
      list.push_back(one(Kind::activations, options,
                         "activations on disk (spillway.activations nvme)",
                         [](config::TrainOptions& o) { o.activations = config::StateHome::nvme; }));
    }
  }
  return list;
}

RemedyFamily layers_in_parts(const model::ModelConfig& config,
                             const config::TrainOptions& options) {
  Family list{.kind = Kind::parts, .remedies = {}};
  for (const std::uint64_t tile : operator_tiles(config, options)) {
    list.remedies.push_back(changed(options,
                                    fmt::format("spillway.operator_tile {} (other rounding)", tile),
                                    [=](config::TrainOptions& o) {
                                      o.operator_tile = tile;
                                      if (config::offloads(o.checkpointing)) {
                                        o.checkpointing = config::Checkpointing::automatic;
                                      }
                                    }));
  }
  return list;
}

}  // namespace spillway::engine
