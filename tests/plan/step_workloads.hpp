// Workloads and placements for tests of the step builder: one by hand, and random ones.
#pragma once

#include <algorithm>
#include <random>

#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

inline constexpr Tier kTiers[] = {Tier::device, Tier::host, Tier::nvme};

inline constexpr BlockCut kAllOnDevice{.parameters = Tier::device,
                                       .gradients = Tier::device,
                                       .state = Tier::device,
                                       .saved = Tier::device};

struct Case {
  Workload workload;
  Placement placement;
};

/// Blocks of 3, 2, 2 and 1 leaves: embedding, two layers, head. One parameter of each is padding.
inline Workload small_workload() {
  Workload workload;
  const char* names[] = {"embedding", "layer 0", "layer 1", "head"};
  const std::uint64_t leaves[] = {3, 2, 2, 1};
  for (std::size_t b = 0; b < 4; ++b) {
    const std::uint64_t padded = leaves[b] * kLeafParameters;
    const bool layer = b == 1 || b == 2;
    workload.blocks.push_back({.name = names[b],
                               .parameters = ElementCount{padded - 1},
                               .padded_parameters = ElementCount{padded},
                               .forward_flops = 1e6 * static_cast<double>(leaves[b]),
                               .backward_flops = 2e6 * static_cast<double>(leaves[b]),
                               .saved_bytes = Bytes{layer ? 1000U : 0U}});
  }
  workload.boundary_bytes = Bytes{256};
  workload.workspace_bytes = Bytes{512};
  workload.token_bytes = Bytes{64};
  workload.tokens = 8;
  return workload;
}

inline void tie(Workload& workload) {
  workload.tied_head = true;
  workload.tied_elements = workload.blocks.front().parameters;
}

/// Makes every block of a size that its ranks can share.
inline void pad_for_ranks(Workload& workload) {
  for (BlockShape& block : workload.blocks) {
    block.padded_parameters =
        ElementCount{round_up(block.parameters.value(), kLeafParameters * workload.replicas.count)};
  }
}

inline Bytes padded_bytes(const Workload& workload, std::size_t block) {
  return Bytes{workload.blocks[block].padded_parameters.value() * size_of(workload.compute)};
}

inline Placement uniform_placement(const Workload& workload, const BlockCut& block) {
  Placement placement;
  placement.blocks.assign(workload.blocks.size(), block);
  placement.tile_parameters = ElementCount{2 * kLeafParameters};
  placement.state_slots = 2;
  return placement;
}

class RandomCases {
 public:
  explicit RandomCases(std::uint64_t seed) : random_(seed) {}

  std::uint64_t between(std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random_);
  }
  bool maybe() { return between(0, 1) == 1; }

  Workload workload() {
    Workload w;
    const std::uint64_t blocks = between(2, 6);
    for (std::uint64_t b = 0; b < blocks; ++b) {
      const std::uint64_t padded = between(1, 5) * kLeafParameters;
      const bool ends = b == 0 || b + 1 == blocks;
      w.blocks.push_back({.name = "block",
                          .parameters = ElementCount{padded - between(0, kLeafParameters - 1)},
                          .padded_parameters = ElementCount{padded},
                          .forward_flops = static_cast<double>(between(1, 9)) * 1e6,
                          .backward_flops = static_cast<double>(between(1, 9)) * 1e6,
                          .saved_bytes = Bytes{ends ? 0 : between(0, 40'000)}});
    }
    const DType dtypes[] = {DType::fp32, DType::bf16, DType::fp16};
    w.compute = dtypes[between(0, 2)];
    if (maybe()) tie(w);
    w.boundary_bytes = Bytes{between(1, 5000)};
    w.workspace_bytes = Bytes{between(1, 5000)};
    w.token_bytes = Bytes{between(1, 500)};
    w.tokens = 4;
    w.micro_batches = static_cast<std::uint32_t>(between(1, 3));
    w.rounds = static_cast<std::uint32_t>(between(1, 3));
    return w;
  }

  /// Vectors, and layers of one to four tiles; a tied head has none.
  Workload tiled_workload() {
    Workload w = workload();
    w.tied_elements = {};
    w.operator_tiles = true;
    w.carried_bytes = Bytes{between(1, 5000)};
    const BlockShape sample = w.blocks.front();
    const auto layers = static_cast<std::uint32_t>(between(3, 5));
    w.blocks.resize(1);
    for (std::uint32_t layer = 0; layer + (w.tied_head ? 1 : 0) < layers; ++layer) {
      const bool ends = layer == 0 || layer + 1 == layers;
      const std::uint64_t tiles = between(1, 4);
      const std::uint64_t feeding = ends ? 0 : between(1, tiles);
      for (std::uint64_t tile = 0; tile < tiles; ++tile) {
        BlockShape block = sample;
        const std::uint64_t padded = between(1, 5) * kLeafParameters;
        block.padded_parameters = ElementCount{padded};
        block.parameters = ElementCount{padded - between(0, kLeafParameters - 1)};
        block.saved_bytes = Bytes{!ends && tile == 0 ? between(0, 40'000) : 0};
        block.layer = layer;
        block.loss_flops = static_cast<double>(between(1, 9)) * 1e6;
        block.feeds_backward = tile < feeding;
        w.blocks.push_back(block);
      }
    }
    return w;
  }

  Placement placement(const Workload& w) {
    Placement p;
    const bool device_only = between(0, 4) == 0;
    for (std::size_t b = 0; b < w.blocks.size(); ++b) {
      const bool device = device_only || between(0, 9) == 0;
      const Tier other = maybe() ? Tier::host : Tier::nvme;
      p.blocks.push_back({.parameters = device || maybe() ? Tier::device : Tier::host,
                          .gradients = device ? Tier::device : Tier::host,
                          .state = device ? Tier::device : other,
                          .saved = maybe() ? std::optional(Tier::device) : std::nullopt});
      if (w.rounds > 1 && maybe()) p.blocks.back().gradients = Tier::device;
    }
    p.tile_parameters = ElementCount{between(1, 4) * kLeafParameters};
    const StateFormat formats[] = {StateFormat::fp32, StateFormat::split, StateFormat::bf16,
                                   StateFormat::int8};
    p.format = formats[between(0, 3)];
    p.state_slots = static_cast<std::uint32_t>(between(1, 4));
    const bool pair = w.tied_head && !p.blocks.front().resident() && !p.blocks.back().resident();
    p.parameter_slots = static_cast<std::uint32_t>(between(pair ? 2 : 1, 4));
    p.gradient_slots = static_cast<std::uint32_t>(between(1, 3));
    if (maybe()) {
      p.order = WorkOrder::micro_batch_major;
      p.gradient_slots = static_cast<std::uint32_t>(w.blocks.size());
    }
    if (w.operator_tiles) p.blocks.front().parameters = Tier::device;
    if (maybe()) place_boundaries(w, p);
    if (!w.operator_tiles && maybe()) offload_saved_activations(w, p);
    return p;
  }

  /// Kept activations of some blocks on the host or on disk, and as few or as many slots as there
  /// may be.
  void offload_saved_activations(const Workload& w, Placement& p) {
    for (std::size_t b = 0; b < w.blocks.size(); ++b) {
      if (maybe()) p.blocks[b].saved = kTiers[between(1, 2)];
    }
    p.saved_slots = static_cast<std::uint32_t>(between(2, 5));
    p.saved_staging = static_cast<std::uint32_t>(between(1, 3));
  }

  /// Some activations off the device, and as few or as many slots as there may be.
  void place_boundaries(const Workload& w, Placement& p) {
    for (std::size_t b = 0; b + 1 < w.blocks.size(); ++b) {
      p.blocks[b].output = kTiers[between(0, 2)];
    }
    p.boundary_slots = static_cast<std::uint32_t>(between(2, 6));
    p.boundary_staging = static_cast<std::uint32_t>(between(1, 3));
  }

  Case next_tiled() {
    Workload w = tiled_workload();
    Placement p = placement(w);
    return {std::move(w), std::move(p)};
  }

  /// A case of several ranks: what the host updates, gathered as the sharding says.
  Case next_of_ranks() {
    Workload w = workload();
    constexpr Sharding kShardings[] = {Sharding::none, Sharding::state, Sharding::parameters};
    w.replicas = {.count = static_cast<std::uint32_t>(between(2, 5)),
                  .sharding = kShardings[between(0, 2)],
                  .sums = maybe() ? SumOrder::fixed : SumOrder::fast};
    const auto node = static_cast<std::uint32_t>(between(1, 3));
    if (w.gathers() && w.replicas.count % node == 0) w.replicas.secondary = node;
    pad_for_ranks(w);
    Placement p = placement(w);
    p.order = WorkOrder::layer_major;
    p.gradient_slots = static_cast<std::uint32_t>(between(1, 3));
    for (BlockCut& cut : p.blocks) {
      if (!w.gathers()) cut.parameters = Tier::device;
      cut.gradients = Tier::host;
      if (cut.state == Tier::device) cut.state = Tier::host;
    }
    p.parameter_slots = static_cast<std::uint32_t>(between(w.tied_head ? 2 : 1, 4));
    return {std::move(w), std::move(p)};
  }

  /// Returns the place of any of the workload's ranks.
  GridPlace place_in(const Workload& w) {
    const Grid grid = w.grid();
    return {.grid = grid, .rank = static_cast<std::uint32_t>(between(0, grid.ranks() - 1))};
  }

  /// Makes the ranks of a case share out every matrix too.
  void make_group(Workload& w) {
    w.tensor = {.count = static_cast<std::uint32_t>(between(2, 4)), .sequence = maybe()};
    w.summed_bytes = w.boundary_bytes * std::uint64_t{w.tensor.sequence ? w.tensor.count : 1};
    w.carried_bytes = w.summed_bytes;
    w.scan_bytes = Bytes{24 * between(1, 50)};
    for (BlockShape& block : w.blocks) {
      const std::uint64_t all = block.parameters.value();
      block.shared_first = ElementCount{all / kLeafParameters * kLeafParameters};
      block.partial_first = ElementCount{maybe() ? all : between(block.shared_first.value(), all)};
    }
  }

  /// A case of a tensor group, of one replica or several.
  Case next_of_group() {
    if (maybe()) {
      Case c = next_of_ranks();
      make_group(c.workload);
      return c;
    }
    Workload w = workload();
    make_group(w);
    Placement p = placement(w);
    p.order = WorkOrder::layer_major;
    p.gradient_slots = static_cast<std::uint32_t>(between(1, 3));
    return {std::move(w), std::move(p)};
  }

  Case next() {
    Workload w = workload();
    Placement p = placement(w);
    return {std::move(w), std::move(p)};
  }

  /// A case whose state is all on disk, and whose last blocks are updated ahead.
  Case next_speculative() {
    Case c = next();
    c.placement.order = WorkOrder::layer_major;
    for (BlockCut& cut : c.placement.blocks) {
      if (cut.state == Tier::device && c.workload.rounds == 1) cut.gradients = Tier::host;
      cut.state = Tier::nvme;
    }
    c.placement.speculative_blocks =
        static_cast<std::uint32_t>(between(1, c.placement.blocks.size()));
    return c;
  }

 private:
  std::mt19937_64 random_;
};

/// Sums over micro-batches stay on the device in either order: one gradient a round leaves it, or
/// one fp32 sum of all rounds.
inline Bytes downloads_by_formula(const Workload& workload, const Placement& placement) {
  Bytes down;
  for (std::size_t b = 0; b < workload.blocks.size(); ++b) {
    if (placement.blocks[b].state == Tier::device) continue;
    const bool once = placement.blocks[b].gradients == Tier::device;
    const std::uint64_t width = once ? 4 : size_of(workload.compute) * workload.rounds;
    down += Bytes{workload.blocks[b].padded_parameters.value() * width};
  }
  return down;
}

}  // namespace spillway::plan
