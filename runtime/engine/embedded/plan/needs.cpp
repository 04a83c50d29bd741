#include "runtime/engine/embedded/plan/needs.hpp"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/engine/embedded/plan/gradient_landing.hpp"
#include "runtime/engine/prepare/budgets.hpp"
#include "runtime/plan/placement/pools.hpp"

namespace spillway::engine {
namespace {

/// Bytes of pages that are there before the trainer.
Bytes shared_bytes(const EmbeddedOptions& options) {
  Bytes all;
  if (options.parameter_pages) all += options.parameter_pages->bytes();
  if (options.frozen_pages) all += options.frozen_pages->bytes();
  return all;
}

/// Returns how to take less of host memory: without what takes most of it, if that can leave.
std::string_view host_remedy(const EmbeddedOptions& options, const EmbeddedNeeds& needs) {
  Bytes frozen;
  for (const plan::MemoryItem& item : needs.items) {
    const bool is_frozen = item.what == label_of(plan::PoolKind::host_frozen);
    if (is_frozen && item.tier == plan::Tier::host) frozen += item.bytes;
  }
  if (!options.frozen_pages && frozen * 2U > needs.total().host) {
    return "keep frozen tensors of units on disk (frozen_nvme)";
  }
  return options.nvme.empty() ? "keep optimizer state on disk, or in a shorter format"
                              : "use a smaller tile, or train fewer parameters";
}

}  // namespace

config::TrainOptions train_options(const EmbeddedOptions& options) {
  config::TrainOptions train;
  train.compute = options.dtype;
  train.device = options.device;
  train.state_format = options.state_format;
  train.tile_parameters = options.tile_parameters;
  train.device_index = options.device_index;
  train.nvme = options.nvme;
  train.host_memory = options.host_memory;
  train.host_link_gbps = options.host_link_gbps;
  train.threads = options.threads;
  train.isa = options.isa;
  train.seed = options.seed;
  return train;
}

EmbeddedNeeds needs_of(const EmbeddedOptions& options, const EmbeddedLayout& layout,
                       const plan::Placement& placement) {
  const plan::Pools pools = plan::make_pools(layout.workload, placement);
  std::vector<plan::MemoryItem> items = plan::memory_items(pools);
  if (options.nvme.empty()) {  // slots on disk are those of checkpoints, which come and go
    std::erase_if(items, [](const auto& item) {
      return item.tier == plan::Tier::nvme && item.what == label_of(plan::PoolKind::disk_state);
    });
  }
  if (const Bytes landing = landing_bytes(options, layout); landing > Bytes{}) {
    items.push_back({.tier = plan::Tier::host, .what = "landing gradients", .bytes = landing});
  }
  return {.items = std::move(items),
          .gradients = pools[static_cast<std::size_t>(plan::PoolKind::host_gradients)].bytes()};
}

plan::Budgets EmbeddedNeeds::total() const {
  return {.device = plan::total(items, plan::Tier::device),
          .host = plan::total(items, plan::Tier::host),
          .nvme = plan::total(items, plan::Tier::nvme)};
}

MemoryBudget available_to(const EmbeddedOptions& options, MemoryBudget memory, Bytes gradients,
                          Bytes beside) {
  // Pages of files, as those that a checkpoint was mapped from, are available as it is. While
  // values are copied, nothing touches the memory of gradients.
  const Bytes freed = std::min({options.freed_values, memory.own, gradients});
  const auto change = [&](Bytes& available) {
    available = available + freed - std::min(available + freed, beside);
  };
  change(memory.physical_available);
  if (memory.scarcest_cgroup) change(memory.scarcest_cgroup->available);
  return memory;
}

void check_memory(const EmbeddedOptions& options, const EmbeddedNeeds& needs, Bytes beside) {
  const config::TrainOptions train = train_options(options);
  const std::optional<Bytes> free_device = free_memory_of_device(train);
  const MemoryBudget memory = available_to(options, read_memory_budget(), needs.gradients, beside);
  const plan::Budgets total = needs.total();
  Bytes host = total.host - std::min(shared_bytes(options), total.host);
  if (free_device) {
    check_fits({.device = total.device, .host = {}}, train, memory, free_device,
               "give units to parameters, and device_memory, so that they are streamed");
  } else {
    host += total.device;  // what is the device is memory of the host
  }
  check_fits({.device = {}, .host = host}, train, memory, std::nullopt,
             host_remedy(options, needs));
}

}  // namespace spillway::engine
