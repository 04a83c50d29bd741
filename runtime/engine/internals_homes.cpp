#include "runtime/engine/internals_homes.hpp"

#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/plan/internals.hpp"

namespace spillway::engine {

using offload::DeviceSpan;
using plan::kNoSlot;

InternalsHomes::InternalsHomes(const plan::Workload& workload, const plan::Placement& placement,
                               offload::DeviceBackend& backend)
    : workload_(workload),
      placement_(placement),
      slot_bytes_(plan::saved_slot_bytes(workload, placement).value()) {
  const std::uint64_t m = workload.micro_batches;
  std::uint64_t kept = 0, on_host = 0, scratch = 0;
  for (std::uint32_t b = 0; b + 1 < workload.blocks.size(); ++b) {
    const bool leaves = plan::internals_leave(workload, placement, b);
    std::uint64_t& end = leaves ? on_host : kept;
    at_.push_back(end);
    if (placement.blocks[b].keep) {
      end += bytes(b) * m;
    } else {
      scratch = std::max(scratch, bytes(b));
    }
  }
  allocate(kept_, backend, Bytes{kept});
  allocate(slots_, backend, Bytes{slot_bytes_ * placement.saved_slots});
  allocate(scratch_, backend, Bytes{workload.tiled ? scratch * m : scratch});
  allocate(host_, backend, Bytes{on_host});
}

DeviceSpan<std::byte> InternalsHomes::device(const plan::Op& op) {
  const std::uint32_t first = workload_.first_block(workload_.layer_of(op.block));
  const std::uint64_t size = bytes(first);
  const std::uint64_t m = op.micro_batch;
  if (op.saved_slot != kNoSlot) return slots_.device().subspan(op.saved_slot * slot_bytes_, size);
  SPILLWAY_ASSERT(!plan::internals_leave(workload_, placement_, first));
  if (placement_.blocks[first].keep) return kept_.device().subspan(at_[first] + m * size, size);
  return scratch_.device().subspan(workload_.tiled ? m * size : 0, size);
}

std::span<std::byte> InternalsHomes::host(const plan::Op& op) {
  SPILLWAY_ASSERT(plan::internals_leave(workload_, placement_, op.block));
  const std::uint64_t size = bytes(op.block);
  return host_.host().subspan(at_[op.block] + op.micro_batch * size, size);
}

}  // namespace spillway::engine
