// BoundaryHomes: the memory of what lies between blocks, activations and their gradients, on the
// device, on the host and on its way to and from the disk; runtime/plan/boundaries.hpp says which
// is where. Control thread only; the views may be used by any thread while this object lives.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nvme_swap/tile_store.hpp"
#include "offload/memory.hpp"
#include "runtime/plan/boundaries.hpp"
#include "runtime/plan/step_plan.hpp"

namespace spillway::engine {

class BoundaryHomes {
 public:
  /// Throws `Error{out_of_memory}` if the backend's budget is below `plan::memory_items`.
  BoundaryHomes(const plan::Workload& workload, const plan::Placement& placement,
                offload::DeviceBackend& backend);

  // Device. `slot` is an op's; kNoSlot means the home of its own. A layer is a block but in tiles.
  [[nodiscard]] offload::DeviceSpan<std::byte> activation(std::uint32_t layer, std::uint32_t m,
                                                          std::uint32_t slot);
  [[nodiscard]] offload::DeviceSpan<std::byte> gradient(std::uint32_t m, std::uint32_t slot);
  /// Where a recomputation writes the block's output: over the same bits, or where nobody reads.
  [[nodiscard]] offload::DeviceSpan<std::byte> recomputed(std::uint32_t block, std::uint32_t m);
  [[nodiscard]] offload::DeviceSpan<std::byte> slot(std::uint32_t slot);

  /// Host side of a save or a load: staging, a parking place or a home.
  [[nodiscard]] std::span<std::byte> host(const plan::Op& op);
  /// Whole pages.
  [[nodiscard]] std::span<std::byte> staging(std::uint32_t slot);
  [[nodiscard]] std::span<std::byte> all_staging() { return staging_.host(); }

  /// A store's tiles for the activations that go to disk; empty if none does.
  [[nodiscard]] nvme_swap::StoreLayout disk_layout() const;
  [[nodiscard]] TileIndex on_disk(std::uint32_t block, std::uint32_t m) const;

 private:
  [[nodiscard]] std::uint64_t bytes() const { return workload_.boundary_bytes.value(); }

  const plan::Workload& workload_;
  const plan::Placement& placement_;
  std::vector<std::uint32_t> place_;  // by layer: of its micro-batch 0 among those with its home
  std::uint32_t first_parked_ = 0;

  offload::DeviceMemory activations_, gradients_, slots_, recomputed_;
  offload::PinnedMemory host_, parked_, staging_;
};

}  // namespace spillway::engine
