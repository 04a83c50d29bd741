#include "runtime/engine/planning.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "nvme_swap/tile_store.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/memory_budget.hpp"
#include "runtime/base/topology.hpp"
#include "runtime/engine/compute_device.hpp"

namespace spillway::engine {
namespace {

using plan::Tier;

/// Share of free memory that a run takes when nothing limits it: the rest is for the page cache,
/// the process itself and everybody else.
constexpr double kShareOfFreeMemory = 0.9;

struct Remedy {
  std::string what;
  TrainOptions options;
};

/// Tiles to try where whole layers, or larger tiles, do not fit: powers of two, largest first.
std::vector<std::uint64_t> operator_tiles(const model::ModelConfig& config,
                                          const TrainOptions& options) {
  std::vector<std::uint64_t> tiles;
  if (config.is_gpt2() || config.tied_head) return tiles;
  std::uint64_t below = options.operator_tile;
  if (below == 0) {
    for (const model::BlockLayout& block : model::make_layout(config).blocks) {
      below = std::max(below, block.parameters.value());
    }
  }
  const std::uint64_t least = model::least_operator_tile(config);
  for (std::uint64_t tile = std::bit_floor(below - 1); tile >= least; tile /= 2) {
    tiles.push_back(tile);
  }
  return tiles;
}

/// Fewer activations on the device at once, by as many rounds more.
std::vector<Remedy> more_rounds(const TrainOptions& options) {
  std::vector<Remedy> list;
  for (std::uint32_t micro = options.micro_batch / 2; micro >= 1; micro /= 2) {
    const std::uint32_t factor = options.micro_batch / micro;
    if (micro * factor != options.micro_batch) continue;
    TrainOptions changed = options;
    changed.micro_batch = micro;
    changed.gradient_accumulation_steps *= factor;
    changed.rounds *= factor;
    list.push_back({fmt::format("train_micro_batch_size_per_gpu {}, gradient_accumulation_steps {} "
                                "and spillway.rounds {}",
                                micro, changed.gradient_accumulation_steps, changed.rounds),
                    changed});
  }
  for (std::uint32_t rounds = 2; rounds <= options.gradient_accumulation_steps; ++rounds) {
    if (options.gradient_accumulation_steps % rounds != 0 || rounds <= options.rounds) continue;
    TrainOptions changed = options;
    changed.rounds = rounds;
    list.push_back({fmt::format("spillway.rounds {}", rounds), changed});
  }
  return list;
}

/// Changes that make the tier's need smaller, each alone.
std::vector<Remedy> remedies(const model::ModelConfig& config, const TrainOptions& options,
                             Tier tier) {
  std::vector<Remedy> list;
  if (tier == Tier::device) list = more_rounds(options);
  const auto add = [&](std::string what, auto change) {
    TrainOptions changed = options;
    change(changed);
    list.push_back({std::move(what), std::move(changed)});
  };
  const auto add_recomputation = [&] {
    const bool keeps = options.checkpointing == Checkpointing::keep ||
                       options.checkpointing == Checkpointing::offload;
    if (!keeps) return;
    add("activation recomputation",
        [](TrainOptions& o) { o.checkpointing = Checkpointing::recompute; });
  };
  if (tier == Tier::device) {
    if (options.state_home == StateHome::device) {
      add("state on the host", [](TrainOptions& o) { o.state_home = StateHome::host; });
    }
    if (options.checkpointing == Checkpointing::keep && options.operator_tile == 0) {
      add("kept activations on the host (spillway.checkpointing offload)",
          [](TrainOptions& o) { o.checkpointing = Checkpointing::offload; });
    }
    add_recomputation();
    if (options.activations == StateHome::device) {
      add("activations on the host (spillway.activations)",
          [](TrainOptions& o) { o.activations = StateHome::automatic; });
    }
    if (options.gradient_sums == SumsHome::device) {
      add("gradients of rounds summed on the host where the device has no room "
          "(spillway.gradient_sums auto)",
          [](TrainOptions& o) { o.gradient_sums = SumsHome::automatic; });
    }
    if (options.residency == Residency::all) {
      add("streamed parameters", [](TrainOptions& o) { o.residency = Residency::none; });
    }
    for (const std::uint64_t tile : operator_tiles(config, options)) {
      add(fmt::format("spillway.operator_tile {} (other rounding)", tile), [=](TrainOptions& o) {
        o.operator_tile = tile;
        o.activations = StateHome::automatic;
        if (o.checkpointing == Checkpointing::offload) o.checkpointing = Checkpointing::automatic;
      });
    }
  }
  if (tier != Tier::device && options.compute == DType::bf16) {
    for (const auto format : {StateFormat::split, StateFormat::bf16, StateFormat::int8}) {
      if (format <= options.state_format) continue;
      add(fmt::format("spillway.state_format {}{}", name_of(format),
                      format == StateFormat::split ? "" : " (other mathematics)"),
          [&](TrainOptions& o) { o.state_format = format; });
    }
  }
  if (tier == Tier::host) add_recomputation();
  if (tier == Tier::host && options.activations == StateHome::host) {
    add("activations on disk (spillway.activations nvme)",
        [](TrainOptions& o) { o.activations = StateHome::nvme; });
  }
  if (tier == Tier::host && options.state_home == StateHome::host) {
    add("state on disk (--nvme DIR)", [](TrainOptions& o) { o.state_home = StateHome::nvme; });
  }
  return list;
}

std::string flag_of(Tier tier) {
  return tier == Tier::device ? "--device-memory"
         : tier == Tier::host ? "--host-memory"
                              : "--nvme (another directory, or more free space)";
}

ModelRuntime with_transformer(const model::ModelConfig& config, const TrainOptions& options,
                              std::unique_ptr<model::Ops> ops) {
  ModelRuntime runtime{.ops = std::move(ops), .transformer = nullptr};
  const model::BatchShape shape{.batch = options.micro_batch, .sequence = options.context};
  runtime.transformer = std::make_unique<model::Transformer>(config, shape, options.compute,
                                                             *runtime.ops, options.operator_tile);
  return runtime;
}

/// Device and host memory, which the host backend takes from the same DRAM.
void add_memory(const TrainOptions& options, plan::Budgets& budgets) {
  const MemoryBudget memory = read_memory_budget();
  const auto free = static_cast<double>(memory.available().value()) * kShareOfFreeMemory;
  if (options.device == DeviceKind::cuda) {
    budgets.device = options.device_memory ? *options.device_memory : free_device_memory();
    budgets.host = options.host_memory.value_or(Bytes{static_cast<std::uint64_t>(free)});
    return;
  }
  const double device =
      options.device_memory ? static_cast<double>(options.device_memory->value()) : free / 2;
  budgets.device = Bytes{static_cast<std::uint64_t>(device)};
  budgets.host =
      options.host_memory.value_or(Bytes{static_cast<std::uint64_t>(std::max(free - device, 0.0))});
}

}  // namespace

void resolve(TrainOptions& options, const model::ModelConfig& config) {
  if (!options.device) options.device = usable_device();
  if (options.context == 0) options.context = config.max_context;
  check(options.context <= config.max_context, ErrorCode::invalid_argument,
        fmt::format("a context of {} tokens, and the model's positions end at {}", options.context,
                    config.max_context));
  check(!config.sliding_window || *config.sliding_window >= options.context,
        ErrorCode::not_supported,
        fmt::format("sliding_window {} is shorter than the context of {}; sliding-window attention "
                    "is not supported: train with a shorter context",
                    config.sliding_window.value_or(0), options.context));
  const auto cores = static_cast<std::uint32_t>(read_topology().cores.size());
  if (options.threads == 0) options.threads = cores;
  if (options.compute_threads == 0) options.compute_threads = cores;
  check(options.update != UpdateMode::immediate, ErrorCode::not_supported,
        "spillway.update immediate: this version updates in deferred mode only, which gives the "
        "same bits; use \"auto\"");
  validate(options);
}

ModelRuntime make_model_runtime(const model::ModelConfig& config, const TrainOptions& options,
                                model::cuda::MatmulChoices products) {
  return with_transformer(config, options, make_ops(options, std::move(products)));
}

ModelRuntime make_model_sizes(const model::ModelConfig& config, const TrainOptions& options) {
  return with_transformer(config, options, make_sizing_ops(options));
}

std::vector<std::filesystem::path> state_directories(const TrainOptions& options,
                                                     const std::filesystem::path& run) {
  return options.nvme.empty() ? std::vector{run / "state"} : options.nvme;
}

const cpu_adam::Kernel& update_kernel(const TrainOptions& options, const plan::Workload& workload) {
  return cpu_adam::find_kernel(options.isa.value_or(cpu_adam::best_isa()),
                               plan::waiting_gradient_dtype(workload), workload.compute,
                               options.state_format);
}

plan::Budgets make_budgets(const TrainOptions& options, const std::filesystem::path& run) {
  plan::Budgets budgets;
  add_memory(options, budgets);
  for (std::filesystem::path directory : state_directories(options, run)) {
    directory = std::filesystem::absolute(directory);
    while (!std::filesystem::exists(directory) && directory.has_relative_path()) {
      directory = directory.parent_path();
    }
    budgets.nvme += Bytes{std::filesystem::space(directory).available};
  }
  return budgets;
}

plan::Placement place(const model::ModelConfig& config, const TrainOptions& options,
                      const plan::Workload& workload, const plan::Budgets& budgets) {
  auto choice = plan::choose_placement(workload, budgets, placement_request(options));
  if (auto* placement = std::get_if<plan::Placement>(&choice)) return std::move(*placement);
  const plan::Shortage shortage = std::get<plan::Shortage>(choice);

  std::vector<std::string> advice{
      fmt::format("{} of at least {}", flag_of(shortage.tier), format_bytes(shortage.needed))};
  for (const Remedy& remedy : remedies(config, options, shortage.tier)) {
    const ModelRuntime runtime = make_model_sizes(config, remedy.options);
    const plan::Workload changed = make_workload(config, *runtime.transformer, remedy.options);
    const auto retried =
        plan::choose_placement(changed, budgets, placement_request(remedy.options));
    if (std::holds_alternative<plan::Placement>(retried)) {
      advice.push_back(remedy.what);
      break;
    }
  }
  throw Error(ErrorCode::does_not_fit,
              fmt::format("does not fit: {} memory needs at least {} and the budget is {}. What "
                          "would make it fit: {}",
                          plan::name_of(shortage.tier), format_bytes(shortage.needed),
                          format_bytes(shortage.budget), fmt::join(advice, "; or ")));
}

}  // namespace spillway::engine
