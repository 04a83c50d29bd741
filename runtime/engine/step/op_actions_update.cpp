// The ops of gradients and of the update that follows from them, on the device and on the host.
#include <cstring>

#include "cpu_adam/gradient_norm.hpp"
#include "runtime/engine/step/foreign_values.hpp"
#include "runtime/engine/step/op_actions.hpp"

namespace spillway::engine {

using plan::Op;
using plan::ValueKind;

void OpActions::round_gradient(const Op& op) {
  const OpMemory memory = memory_of(op);
  const plan::Workload& workload = resources_.workload;
  FinishedGradient gradient;
  gradient.sums = memory.device(memory.read(ValueKind::gradient_sum, op.block), sum_bytes(op.block))
                      .as<float>();
  gradient.parameters = workload.blocks[op.block].parameters.value();
  if (workload.tied_blocks().contains(op.block)) {
    const Bytes bytes{workload.tied_elements_of(op.block).value() * sizeof(float)};
    gradient.tied =
        memory.device(memory.read(ValueKind::tied_gradient_sum, op.block), bytes).as<float>();
  }
  gradient.rounded =
      memory.device(memory.write(ValueKind::gradient, op.block), compute_bytes(op.block));
  gradient.dtype = workload.compute;
  if (memory.writes(ValueKind::total_gradient, op.block)) {
    gradient.home = memory.device(memory.write(ValueKind::total_gradient, op.block));
  }
  gradient.sums_rounds = workload.rounds > 1;
  gradient.first_round = op.round == 0;
  resources_.device_math.finish_gradient(gradient);
}

void OpActions::device_norm(const Op& op) {
  const OpMemory memory = memory_of(op);
  resources_.device_math.sum_squares(
      memory.device(memory.read(ValueKind::total_gradient, op.block)), types_.gradient,
      memory.device(memory.write(ValueKind::norm_leaves, op.tile)).as<double>());
}

/// Adds the gradients of a round, one of each rank where they add up one by one.
void OpActions::host_accumulate(const Op& op) {
  const OpMemory memory = memory_of(op);
  const auto source = memory.host(memory.read(ValueKind::gradient, op.block));
  const auto bytes = memory.host(memory.write(ValueKind::total_gradient, op.block));
  auto* target = reinterpret_cast<float*>(bytes.data());
  const DType dtype = resources_.workload.compute;
  const std::size_t count = bytes.size() / sizeof(float);
  resources_.workers.parallel_for(count, kLeafParameters, [&](std::size_t first, std::size_t last) {
    for (std::uint32_t g = 0; g < resources_.workload.gradients_of_round(); ++g) {
      const std::byte* gradient = source.data() + (g * count + first) * size_of(dtype);
      cpu_adam::accumulate(resources_.isa, dtype, gradient, {target + first, last - first},
                           op.round == 0 && g == 0);
    }
  });
}

void OpActions::host_norm(const Op& op) {
  const OpMemory memory = memory_of(op);
  const std::byte* gradient = memory.host(memory.read(ValueKind::total_gradient, op.block)).data();
  const auto bytes = memory.host(memory.write(ValueKind::norm_leaves, op.tile));
  const std::span leaves{reinterpret_cast<double*>(bytes.data()), bytes.size() / sizeof(double)};
  const std::size_t leaf = kLeafParameters * size_of(types_.gradient);
  resources_.workers.parallel_for(leaves.size(), 1, [&](std::size_t first, std::size_t last) {
    cpu_adam::sum_squares(resources_.isa, types_.gradient, gradient + first * leaf,
                          (last - first) * kLeafParameters, leaves.subspan(first, last - first));
  });
}

cpu_adam::UpdateRange OpActions::tile_range(std::uint32_t tile, std::byte* state,
                                            const std::byte* gradient,
                                            std::byte* parameters) const {
  const plan::Tile& t = resources_.slots.tiles()[tile];
  cpu_adam::UpdateRange range = cpu_adam::tile_range(resources_.slots.layout(tile), state, state,
                                                     gradient, parameters, parameters);
  range.prefetch_distance = resources_.update_prefetch;
  range.block = t.block;
  range.index = t.first.value();
  return range;
}

OpActions::Groups OpActions::groups_of(std::uint32_t block) const {
  const BlockGroups& parts = resources_.groups[block];
  const auto& scalars = step_.update.groups;
  Groups groups;
  std::ranges::transform(parts, groups.begin(), [&](const GroupPart& part) {
    return cpu_adam::ParameterGroup{.end = part.end, .scalars = scalars[part.group]};
  });
  return groups;
}

void OpActions::device_update(const Op& op) {
  SPILLWAY_ASSERT(step_.update.parts.empty());
  const OpMemory memory = memory_of(op);
  resources_.device_math.update(
      types_, groups_of(op.block),
      tile_range(op.tile, memory.device(memory.write(ValueKind::state, op.tile)).address(),
                 memory.device(memory.read(ValueKind::total_gradient, op.block)).address(),
                 memory.device(memory.write(ValueKind::parameters, op.block)).address()));
}

std::uint64_t OpActions::checksum(std::span<const std::byte> data) {
  const auto pieces = std::span(piece_checksums_).first(nvme_swap::checksum_pieces(data.size()));
  resources_.workers.parallel_for(pieces.size(), 1, [&](std::size_t first, std::size_t last) {
    for (std::size_t piece = first; piece < last; ++piece) {
      pieces[piece] = nvme_swap::checksum_of_piece(data, piece);
    }
  });
  return nvme_swap::combine_checksums(pieces);
}

void OpActions::host_update(const Op& op) {
  const OpMemory memory = memory_of(op);
  const StateSlots& slots = resources_.slots;
  const auto state = slots.state_of(op.tile, memory.host(memory.write(ValueKind::state, op.tile)));
  const auto parameters = memory.host(memory.write(ValueKind::parameters, op.block));
  const cpu_adam::UpdateRange whole = tile_range(
      op.tile, state.data(), memory.host(memory.read(ValueKind::total_gradient, op.block)).data(),
      parameters.data());
  const auto& parts = step_.update.parts;
  const Groups same = parts.empty() ? groups_of(op.block) : Groups{};
  // What another framework has computed with is what is updated.
  const bool follows_values = resources_.passes != nullptr;
  const std::span<const cpu_adam::ParameterGroup> groups =
      parts.empty() ? std::span<const cpu_adam::ParameterGroup>(same) : parts[op.block];
  if (memory.writes(ValueKind::checksum, op.tile)) {
    const TileChecksums sums = tile_update_.run(
        {.kernel = kernel_,
         .groups = groups,
         .range = whole,
         .layout = slots.layout(op.tile),
         .state = state,
         .parameters = slots.with_parameters() ? parameters : std::span<std::byte>{},
         .follows_values = follows_values});
    // A damaged tile ends the run here, before anything of it is on its way to the disk or the
    // device.
    resources_.store->verify(StateSlots::state(op.tile), sums.before);
    state_checksums_[op.tile] = sums.state;
    parameter_checksums_[op.tile] = sums.parameters;
    return;
  }
  resources_.workers.parallel_for(
      whole.count, kLeafParameters, [&](std::size_t first, std::size_t last) {
        const auto part = cpu_adam::slice(kernel_, whole, first, last - first);
        if (follows_values) return update_from_values(kernel_, groups, part);
        cpu_adam::update(kernel_, groups, part);
      });
}

void OpActions::host_checksum(const Op& op) {
  state_checksums_[op.tile] = checksum(state_of(op));
  if (resources_.slots.with_parameters()) {
    parameter_checksums_[op.tile] = checksum(parameters_to_write(op));
  }
}

/// Stale weights need the host backend, so the CPU can address device memory.
void OpActions::device_stash(const Op& op) {
  const OpMemory memory = memory_of(op);
  const auto source = memory.device(memory.source());
  std::memcpy(memory.device(memory.target()).address(), source.address(), source.size());
}

void OpActions::host_stash(const Op& op) {
  const OpMemory memory = memory_of(op);
  const std::span<std::byte> source = memory.host(memory.source());
  const std::span<std::byte> target = memory.host(memory.target());
  resources_.workers.parallel_for(
      source.size(), kLeafParameters, [&](std::size_t first, std::size_t last) {
        std::memcpy(target.data() + first, source.data() + first, last - first);
      });
}

}  // namespace spillway::engine
