#include "tests/plan/op_places.hpp"

#include <fmt/format.h>

namespace spillway::plan {
namespace {

/// A pool's tier, as its name says.
Tier named_tier(PoolKind pool) {
  const std::string_view name = name_of(pool);
  if (name.starts_with("disk_")) return Tier::nvme;
  for (const char* host :
       {"host_", "landing_", "gathered_leaves", "state_staging", "checksums", "boundary_staging",
        "saved_activation_staging", "frozen_staging", "secondary_"}) {
    if (name.starts_with(host)) return Tier::host;
  }
  return Tier::device;
}

std::string wrong_tier(const Op& op, const Access& access) {
  const Tier tier = named_tier(access.buffer.pool);
  const bool tokens = access.value.kind == ValueKind::tokens && !access.writes;
  bool fits = true;
  switch (op.lane) {
    case Lane::gpu: fits = tier == Tier::device || tokens; break;
    case Lane::cpu: fits = tier == Tier::host; break;
    case Lane::h2d: fits = tier == (access.writes ? Tier::device : Tier::host); break;
    case Lane::d2h: fits = tier == (access.writes ? Tier::host : Tier::device); break;
    case Lane::net: fits = tier == Tier::device; break;
    case Lane::nvme_read: fits = tier == (access.writes ? Tier::host : Tier::nvme); break;
    case Lane::nvme_write:
      fits = op.kind == OpKind::commit || tier == (access.writes ? Tier::nvme : Tier::host);
      break;
    case Lane::external: fits = tier == Tier::host; break;
  }
  return fits ? "" : fmt::format("its lane does not reach {}", to_text(access.buffer));
}

bool is_by_tile(PoolKind pool) {
  switch (pool) {
    case PoolKind::resident_parameters:
    case PoolKind::stashed_parameters:
    case PoolKind::host_stash:
    case PoolKind::device_state:
    case PoolKind::device_gradients:
    case PoolKind::device_leaves:
    case PoolKind::device_sums:
    case PoolKind::host_gradients:
    case PoolKind::host_parameters:
    case PoolKind::host_state:
    case PoolKind::checksums:
    case PoolKind::host_leaves:
    case PoolKind::disk_state: return true;
    default: return false;
  }
}

/// An op of a tile uses its tile, one of a block all tiles of the block, and a commit all tiles.
std::string wrong_range(const Op& op, const Access& access, const std::vector<Tile>& tiles) {
  if (!is_by_tile(access.buffer.pool)) return access.buffer.count == 1 ? "" : "it uses two buffers";
  const bool of_tile = op.kind == OpKind::update || op.kind == OpKind::grad_norm ||
                       op.kind == OpKind::checksum ||
                       (op.kind == OpKind::copy && op.copied.what == ValueKind::state);
  Buffer whole{access.buffer.pool, 0, 0};
  for (std::uint32_t t = 0; t < tiles.size(); ++t) {
    const bool meant =
        op.kind == OpKind::commit || (of_tile ? t == op.tile : tiles[t].block == access.value.of);
    if (meant && whole.count++ == 0) whole.first = t;
  }
  // Versions of all tiles lie one behind the other.
  Buffer used = access.buffer;
  const bool stash = used.pool == PoolKind::stashed_parameters || used.pool == PoolKind::host_stash;
  if (stash) used.first %= static_cast<std::uint32_t>(tiles.size());
  return used == whole ? "" : fmt::format("it uses {}", to_text(access.buffer));
}

/// Rounds in flight lie beside each other, each with its micro-batches. stale_test.cpp looks at the
/// places of a pipeline that stays full.
std::uint32_t place_in_flight(const RunOf& run, std::uint32_t layer, const Value& value) {
  const Workload& w = run.workload;
  const std::uint32_t rounds = w.stage.in_flight;
  const std::uint32_t place = w.stale.places.empty() ? (run.phase + value.round) % rounds
                                                     : w.stale.places[value.round % w.rounds];
  return (layer * rounds + place) * w.micro_batches + value.micro_batch;
}

/// Values with a place of their own lie where the placement says.
std::string wrong_place(const Access& access, const RunOf& run, const std::vector<Tile>& tiles) {
  const Workload& w = run.workload;
  const Buffer& at = access.buffer;
  const Value& value = access.value;
  bool fits = true;
  switch (at.pool) {
    case PoolKind::resident_parameters:
      fits = run.placement.blocks[tiles[at.first].block].resident() &&
             tiles[at.first].block == value.of;
      break;
    case PoolKind::whole_parameters:
      fits = run.placement.blocks[at.first].resident() && at.first == value.of &&
             w.replicas.sharding == Sharding::state;
      break;
    case PoolKind::secondary_parameters:
      fits = at.first == value.of && w.replicas.secondary > 1 &&
             w.replicas.sharding == Sharding::parameters;
      break;
    case PoolKind::host_parameters:
      fits =
          run.placement.blocks[value.of].state != Tier::device && tiles[at.first].block == value.of;
      break;
    case PoolKind::device_state:
    case PoolKind::host_state: {
      const Tier tier = run.placement.blocks[tiles[at.first].block].state;
      fits = at.first == value.of && tier == named_tier(at.pool);
      break;
    }
    case PoolKind::boundaries:
    case PoolKind::host_boundaries:
    case PoolKind::disk_boundaries: {
      const Tier tier = run.placement.blocks[w.first_block(value.of)].output;
      fits = at.first == place_in_flight(run, value.of, value) && tier == named_tier(at.pool);
      break;
    }
    case PoolKind::saved_activations:
    case PoolKind::host_saved_activations:
    case PoolKind::disk_saved_activations: {
      const std::uint32_t first = w.operator_tiles ? w.first_block(value.of) : value.of;
      const bool empty = w.blocks[first].saved_bytes == Bytes{};
      const std::optional<Tier> saved = run.placement.blocks[first].saved;
      fits = at.first == place_in_flight(run, first, value) && saved &&
             (empty ? Tier::device : *saved) == named_tier(at.pool);
      break;
    }
    default: break;
  }
  return fits ? ""
              : fmt::format("{} is no place for {} of {}", to_text(at), name_of(value.kind),
                            value.of);
}

}  // namespace

std::string find_wrong_place(const Op& op, const Access& access, const RunOf& run,
                             const std::vector<Tile>& tiles) {
  for (const std::string& wrong :
       {wrong_tier(op, access), wrong_range(op, access, tiles), wrong_place(access, run, tiles)}) {
    if (!wrong.empty()) return wrong;
  }
  return {};
}

}  // namespace spillway::plan
