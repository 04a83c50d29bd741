#include "runtime/engine/homes.hpp"

#include <string_view>

namespace spillway::engine {

using offload::DeviceSpan;
using plan::Tier;

namespace {

/// Gives out offsets in one allocation.
class Cursor {
 public:
  std::uint64_t take(std::uint64_t bytes) { return std::exchange(end_, end_ + bytes); }
  [[nodiscard]] Bytes end() const { return Bytes{end_}; }

 private:
  std::uint64_t end_ = 0;
};

std::uint64_t leaves(const plan::Tile& tile) { return tile.count.value() / kLeafParameters; }

}  // namespace

Homes::Homes(const plan::Workload& workload, const plan::Placement& placement,
             offload::DeviceBackend& backend)
    : workload_(workload),
      placement_(placement),
      slots_(placement.format, plan::make_tiles(workload, placement.tile_parameters)),
      boundaries_(workload, placement, backend),
      internals_(workload, placement, backend),
      tiles_of_block_(workload.blocks.size()) {
  for (std::uint32_t tile = 0; tile < tiles().size(); ++tile) {
    tiles_of_block_[tiles()[tile].block].push_back(tile);
    const bool on_disk = placement.blocks[tiles()[tile].block].state == Tier::nvme;
    if (!placement.commits && !on_disk) slots_.keep_off_disk(tile);
  }
  allocate_device(backend);
  allocate_host(backend);
}

std::uint64_t Homes::state_size(std::uint32_t tile) const { return slots_.layout(tile).bytes; }

void Homes::allocate_device(offload::DeviceBackend& backend) {
  Cursor resident, gradient;
  const std::size_t waiting = size_of(plan::waiting_gradient_dtype(workload_));
  const auto blocks = static_cast<std::uint32_t>(workload_.blocks.size());
  const std::uint64_t m = workload_.micro_batches;
  for (std::uint32_t b = 0; b < blocks; ++b) {
    const plan::BlockPlacement& place = placement_.blocks[b];
    resident_at_.push_back(resident.take(place.resident ? padded(b) * compute_size() : 0));
    device_gradient_at_.push_back(gradient.take(
        plan::gradient_on_device(workload_, placement_, b) ? padded(b) * waiting : 0));
  }
  Cursor state, norm_leaves;
  for (std::uint32_t t = 0; t < tiles().size(); ++t) {
    const bool here = placement_.blocks[tiles()[t].block].state == Tier::device;
    device_state_at_.push_back(state.take(here ? state_size(t) : 0));
    device_leaves_at_.push_back(norm_leaves.take(here ? leaves(tiles()[t]) * sizeof(double) : 0));
  }
  const std::uint64_t parameter_slot =
      plan::parameter_slot_elements(workload_, placement_).value() * compute_size();
  const std::uint64_t gradient_elements =
      plan::gradient_slot_elements(workload_).value() * placement_.gradient_slots +
      plan::vector_elements(workload_).value();
  allocate(resident_, backend, resident.end());
  allocate(parameter_slots_, backend, Bytes{parameter_slot * placement_.parameter_slots});
  allocate(device_state_, backend, state.end());
  allocate(accumulators_, backend, Bytes{gradient_elements * sizeof(float)});
  if (workload_.compute != DType::fp32) {
    allocate(rounded_, backend, Bytes{gradient_elements * compute_size()});
  }
  if (workload_.tied_head) {
    allocate(tied_accumulator_, backend, Bytes{workload_.tied_elements.value() * sizeof(float)});
  }
  allocate(device_gradient_, backend, gradient.end());
  allocate(device_leaves_, backend, norm_leaves.end());
  allocate(carried_, backend, workload_.carried_bytes * m);
  allocate(workspace_, backend, workload_.workspace_bytes);
  allocate(tokens_, backend, workload_.token_bytes * m);
  allocate(loss_sums_, backend, Bytes{sizeof(double) * m * workload_.rounds});
}

void Homes::allocate_host(offload::DeviceBackend& backend) {
  Cursor parameters, gradient, state, sums;
  const std::size_t waiting = size_of(plan::waiting_gradient_dtype(workload_));
  bool lands = false;
  for (std::uint32_t b = 0; b < workload_.blocks.size(); ++b) {
    const bool here = placement_.blocks[b].state != Tier::device;
    lands = lands || !plan::gradient_on_device(workload_, placement_, b);
    host_parameters_at_.push_back(parameters.take(here ? padded(b) * compute_size() : 0));
    host_gradient_at_.push_back(gradient.take(here ? padded(b) * waiting : 0));
    leaves_at_.push_back(sums.take(padded(b) / kLeafParameters * sizeof(double)));
  }
  for (std::uint32_t t = 0; t < tiles().size(); ++t) {
    const bool here = placement_.blocks[tiles()[t].block].state == Tier::host;
    host_state_at_.push_back(state.take(here ? state_size(t) : 0));
  }
  const std::uint64_t micro_batches = std::uint64_t{workload_.micro_batches} * workload_.rounds;
  sums.take(micro_batches * sizeof(double));
  allocate(host_parameters_, backend, parameters.end());
  allocate(host_gradient_, backend, gradient.end());
  if (workload_.rounds > 1 && lands) {
    const std::uint64_t slots =
        plan::gradient_slot_elements(workload_).value() * placement_.gradient_slots;
    allocate(landing_, backend,
             Bytes{(slots + plan::vector_elements(workload_).value()) * compute_size()});
  }
  allocate(host_state_, backend, state.end());
  allocate(staging_, backend,
           plan::slot_bytes(placement_.format, placement_.tile_parameters) *
               std::uint64_t{placement_.state_slots});
  allocate(host_tokens_, backend, workload_.token_bytes * micro_batches);
  allocate(sums_, backend, sums.end());
}

std::span<const std::uint32_t> Homes::tiles_of(std::uint32_t block) const {
  return tiles_of_block_[block];
}

DeviceSpan<std::byte> Homes::parameters(std::uint32_t block, std::uint32_t slot) {
  const std::uint64_t bytes = padded(block) * compute_size();
  if (slot == plan::kNoSlot) return resident_.device().subspan(resident_at_[block], bytes);
  const std::uint64_t stride =
      plan::parameter_slot_elements(workload_, placement_).value() * compute_size();
  return parameter_slots_.device().subspan(slot * stride, bytes);
}

DeviceSpan<float> Homes::accumulator(std::uint32_t block, std::uint32_t slot) {
  const std::uint64_t stride = plan::gradient_slot_elements(workload_).value();
  return accumulators_.device().as<float>().subspan(slot * stride, padded(block));
}

DeviceSpan<std::byte> Homes::rounded(std::uint32_t block, std::uint32_t slot) {
  if (workload_.compute == DType::fp32) return accumulator(block, slot).as<std::byte>();
  const std::uint64_t stride = plan::gradient_slot_elements(workload_).value() * compute_size();
  return rounded_.device().subspan(slot * stride, padded(block) * compute_size());
}

DeviceSpan<std::byte> Homes::device_gradient(std::uint32_t block) {
  const std::size_t waiting = size_of(plan::waiting_gradient_dtype(workload_));
  return device_gradient_.device().subspan(device_gradient_at_[block], padded(block) * waiting);
}

DeviceSpan<std::byte> Homes::device_state(std::uint32_t tile) {
  return device_state_.device().subspan(device_state_at_[tile], state_size(tile));
}

DeviceSpan<double> Homes::device_leaves(std::uint32_t tile) {
  return device_leaves_.device()
      .subspan(device_leaves_at_[tile], leaves(tiles()[tile]) * sizeof(double))
      .as<double>();
}

DeviceSpan<std::byte> Homes::carried(std::uint32_t m) {
  const std::uint64_t bytes = workload_.carried_bytes.value();
  return carried_.device().subspan(m * bytes, bytes);
}

DeviceSpan<std::int32_t> Homes::tokens(std::uint32_t m) {
  const std::uint64_t bytes = workload_.token_bytes.value();
  return tokens_.device().subspan(m * bytes, bytes).as<std::int32_t>();
}

DeviceSpan<double> Homes::loss_sum(std::uint32_t round, std::uint32_t m) {
  return all_loss_sums().subspan(std::uint64_t{round} * workload_.micro_batches + m, 1);
}

std::span<std::byte> Homes::host_parameters(std::uint32_t block) {
  return host_parameters_.host().subspan(host_parameters_at_[block],
                                         padded(block) * compute_size());
}

std::span<std::byte> Homes::host_parameters_of_tile(std::uint32_t tile) {
  const plan::Tile& t = tiles()[tile];
  return host_parameters(t.block).subspan(t.first.value() * compute_size(),
                                          t.count.value() * compute_size());
}

DeviceSpan<std::byte> Homes::device_parameters_of_tile(std::uint32_t tile) {
  const plan::Tile& t = tiles()[tile];
  return parameters(t.block, plan::kNoSlot)
      .subspan(t.first.value() * compute_size(), t.count.value() * compute_size());
}

std::span<std::byte> Homes::host_gradient(std::uint32_t block) {
  const std::size_t waiting = size_of(plan::waiting_gradient_dtype(workload_));
  return host_gradient_.host().subspan(host_gradient_at_[block], padded(block) * waiting);
}

std::span<std::byte> Homes::landing(std::uint32_t block, std::uint32_t slot) {
  const std::uint64_t stride = plan::gradient_slot_elements(workload_).value() * compute_size();
  return landing_.host().subspan(slot * stride, padded(block) * compute_size());
}

std::span<std::byte> Homes::host_state(std::uint32_t tile) {
  return host_state_.host().subspan(host_state_at_[tile], state_size(tile));
}

std::span<std::byte> Homes::staging(std::uint32_t tile, std::uint32_t slot) {
  const std::uint64_t stride =
      plan::slot_bytes(placement_.format, placement_.tile_parameters).value();
  return staging_.host().subspan(slot * stride, slots_.layout(tile).disk_bytes);
}

std::span<std::int32_t> Homes::host_tokens(std::uint32_t round, std::uint32_t m) {
  const std::uint64_t bytes = workload_.token_bytes.value();
  const std::span<std::byte> raw = host_tokens_.host().subspan(
      (std::uint64_t{round} * workload_.micro_batches + m) * bytes, bytes);
  return {reinterpret_cast<std::int32_t*>(raw.data()), raw.size() / sizeof(std::int32_t)};
}

std::span<double> Homes::leaves_of_block(std::uint32_t block) {
  auto* first = reinterpret_cast<double*>(sums_.host().data() + leaves_at_[block]);
  return {first, padded(block) / kLeafParameters};
}

std::span<double> Homes::leaves_of_tile(std::uint32_t tile) {
  const plan::Tile& t = tiles()[tile];
  return leaves_of_block(t.block).subspan(t.first.value() / kLeafParameters, leaves(t));
}

std::span<double> Homes::host_loss_sums() {
  const std::uint64_t count = std::uint64_t{workload_.micro_batches} * workload_.rounds;
  const std::span<std::byte> raw = sums_.host().last(count * sizeof(double));
  return {reinterpret_cast<double*>(raw.data()), count};
}

}  // namespace spillway::engine
