#include "runtime/engine/step/tile_update.hpp"

#include <algorithm>

#include "nvme_swap/format.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/step/written_values.hpp"

namespace spillway::engine {
namespace {

static_assert(nvme_swap::kChecksumPiece == kPageBytes);

std::uint64_t combine(std::span<const std::uint64_t> sums, std::size_t bytes) {
  return nvme_swap::combine_checksums(sums.first(nvme_swap::checksum_pieces(bytes)));
}

}  // namespace

TileUpdate::TileUpdate(cpu_adam::WorkerPool& workers, Bytes state)
    : workers_(workers),
      before_(nvme_swap::checksum_pieces(state.value())),
      state_(before_.size()),
      parameters_(before_.size()) {}  // no format has more parameters than state, in bytes

void TileUpdate::Pages::sum(std::size_t first, std::size_t last) const {
  for (std::size_t page = first / kPageBytes; page < last / kPageBytes; ++page) {
    sums[page] = nvme_swap::checksum_of_piece(from, page);
  }
}

/// What lies between and behind the arrays that are updated in parts: gaps and scales.
void TileUpdate::sum_gaps(const cpu_adam::StateLayout& layout, const Pages& state) const {
  const std::size_t moment = layout.count * cpu_adam::moment_size(layout.format);
  state.sum(layout.count * cpu_adam::master_size(layout.format), layout.m);
  state.sum(layout.m + moment, layout.v);
  state.sum(layout.v + moment, layout.bytes);
}

void TileUpdate::run_part(const UpdatedTile& tile, std::size_t first, std::size_t last) {
  const cpu_adam::StateLayout& layout = tile.layout;
  const std::size_t master = cpu_adam::master_size(layout.format);
  const std::size_t moment = cpu_adam::moment_size(layout.format);
  const auto sum_state = [&](std::vector<std::uint64_t>& sums) {
    const Pages state{.from = tile.state, .sums = sums};
    state.sum(layout.master + first * master, layout.master + last * master);
    state.sum(layout.m + first * moment, layout.m + last * moment);
    state.sum(layout.v + first * moment, layout.v + last * moment);
  };
  sum_state(before_);
  const cpu_adam::UpdateRange part = cpu_adam::slice(tile.kernel, tile.range, first, last - first);
  if (tile.follows_values) {
    update_from_values(tile.kernel, tile.groups, part);
  } else {
    cpu_adam::update(tile.kernel, tile.groups, part);
  }
  sum_state(state_);
  if (tile.parameters.empty()) return;
  const std::size_t parameter = size_of(tile.kernel.parameter_dtype);
  Pages{.from = tile.parameters, .sums = parameters_}.sum(first * parameter, last * parameter);
}

TileChecksums TileUpdate::run(const UpdatedTile& tile) {
  const cpu_adam::StateLayout& layout = tile.layout;
  SPILLWAY_ASSERT(layout.count % kLeafParameters == 0 && tile.state.size() == layout.bytes);
  SPILLWAY_ASSERT(nvme_swap::checksum_pieces(layout.bytes) <= before_.size());
  sum_gaps(layout, {.from = tile.state, .sums = before_});
  workers_.parallel_for(layout.count, kCachedParameters, [&](std::size_t first, std::size_t last) {
    for (std::size_t at = first; at < last; at += kCachedParameters) {
      run_part(tile, at, std::min(at + kCachedParameters, last));
    }
  });
  sum_gaps(layout, {.from = tile.state, .sums = state_});
  TileChecksums sums;
  sums.before = combine(before_, layout.bytes);
  sums.state = combine(state_, layout.bytes);
  if (!tile.parameters.empty()) sums.parameters = combine(parameters_, tile.parameters.size());
  return sums;
}

}  // namespace spillway::engine
