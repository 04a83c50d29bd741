#include "runtime/engine/boundary_homes.hpp"

#include <array>

#include "runtime/base/error.hpp"

namespace spillway::engine {

using offload::DeviceSpan;
using plan::BoundaryHome;
using plan::kNoSlot;

BoundaryHomes::BoundaryHomes(const plan::Workload& workload, const plan::Placement& placement,
                             offload::DeviceBackend& backend)
    : workload_(workload), placement_(placement) {
  std::array<std::uint32_t, 4> places{};  // by home
  for (std::uint32_t layer = 0; layer + 1 < workload.layers(); ++layer) {
    // Tiles leave the output of their layer on the device: all blocks' placements say so.
    std::uint32_t& next = places[static_cast<std::size_t>(plan::activation_home(placement, layer))];
    place_.push_back(next);
    next += workload.micro_batches;
  }
  const auto boundaries = [&](BoundaryHome home) {
    return workload.boundary_bytes * std::uint64_t{places[static_cast<std::size_t>(home)]};
  };
  const Bytes one = workload.boundary_bytes;
  allocate(activations_, backend, boundaries(BoundaryHome::device));
  if (placement.boundary_slots == 0) {
    allocate(gradients_, backend, one * std::uint64_t{workload.micro_batches});
    return;
  }
  const std::uint32_t parked = plan::parked_micro_batches(workload, placement);
  first_parked_ = workload.micro_batches - parked;
  allocate(slots_, backend, one * std::uint64_t{plan::device_boundary_slots(workload, placement)});
  allocate(recomputed_, backend, one);
  allocate(host_, backend, boundaries(BoundaryHome::host));
  allocate(parked_, backend, one * std::uint64_t{parked});
  allocate(staging_, backend,
           plan::boundary_disk_bytes(workload) * std::uint64_t{placement.boundary_staging});
}

DeviceSpan<std::byte> BoundaryHomes::slot(std::uint32_t slot) {
  return slots_.device().subspan(slot * bytes(), bytes());
}

DeviceSpan<std::byte> BoundaryHomes::activation(std::uint32_t layer, std::uint32_t m,
                                                std::uint32_t slot) {
  if (slot != kNoSlot) return this->slot(slot);
  SPILLWAY_ASSERT(plan::activation_home(placement_, layer) == BoundaryHome::device);
  return activations_.device().subspan((std::uint64_t{place_[layer]} + m) * bytes(), bytes());
}

DeviceSpan<std::byte> BoundaryHomes::gradient(std::uint32_t m, std::uint32_t slot) {
  if (slot != kNoSlot) return this->slot(slot);
  return gradients_.device().subspan(m * bytes(), bytes());
}

DeviceSpan<std::byte> BoundaryHomes::recomputed(std::uint32_t block, std::uint32_t m) {
  if (plan::activation_home(placement_, block) != BoundaryHome::device) {
    return recomputed_.device();
  }
  return activation(block, m, kNoSlot);
}

std::span<std::byte> BoundaryHomes::host(const plan::Op& op) {
  if (op.slot != kNoSlot) return staging(op.slot).first(bytes());
  const BoundaryHome home = plan::activation_home(placement_, op.block);
  if (op.of_gradient || home == BoundaryHome::parking) {
    SPILLWAY_ASSERT(op.micro_batch >= first_parked_);
    return parked_.host().subspan((op.micro_batch - first_parked_) * bytes(), bytes());
  }
  SPILLWAY_ASSERT(home == BoundaryHome::host);
  return host_.host().subspan((std::uint64_t{place_[op.block]} + op.micro_batch) * bytes(),
                              bytes());
}

std::span<std::byte> BoundaryHomes::staging(std::uint32_t slot) {
  const std::uint64_t pages = plan::boundary_disk_bytes(workload_).value();
  return staging_.host().subspan(slot * pages, pages);
}

nvme_swap::StoreLayout BoundaryHomes::disk_layout() const {
  const std::uint64_t count =
      std::uint64_t{workload_.micro_batches} * plan::blocks_with(placement_, BoundaryHome::nvme);
  return {.tiles = std::vector<Bytes>(count, plan::boundary_disk_bytes(workload_))};
}

TileIndex BoundaryHomes::on_disk(std::uint32_t block, std::uint32_t m) const {
  return TileIndex{place_[block] + m};
}

}  // namespace spillway::engine
