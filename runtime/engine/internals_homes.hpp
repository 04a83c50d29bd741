// InternalsHomes: the memory of what forward saves for backward inside the blocks: homes of their
// own on the device, the scratch that recomputation shares, slots and homes on the host of what
// waits there; runtime/plan/internals.hpp says which is where. Control thread only; the views may
// be used by any thread while this object lives.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/memory.hpp"
#include "runtime/plan/placement.hpp"
#include "runtime/plan/step_plan.hpp"

namespace spillway::engine {

class InternalsHomes {
 public:
  /// Throws `Error{out_of_memory}` if the backend's budget is below `plan::memory_items`.
  InternalsHomes(const plan::Workload& workload, const plan::Placement& placement,
                 offload::DeviceBackend& backend);

  /// What an op's forward saves or its backward reads: the op's slot, the home of the block's layer
  /// or the scratch.
  [[nodiscard]] offload::DeviceSpan<std::byte> device(const plan::Op& op);
  /// Host side of a save or a load.
  [[nodiscard]] std::span<std::byte> host(const plan::Op& op);

 private:
  [[nodiscard]] std::uint64_t bytes(std::uint32_t block) const {
    return workload_.blocks[block].saved_bytes.value();
  }

  const plan::Workload& workload_;
  const plan::Placement& placement_;
  std::uint64_t slot_bytes_;
  std::vector<std::uint64_t> at_;  // by block: offset of its micro-batch 0 in its kind of home

  offload::DeviceMemory kept_, slots_, scratch_;
  offload::PinnedMemory host_;
};

}  // namespace spillway::engine
