#include "runtime/engine/step/update_ops.hpp"

#include <algorithm>
#include <span>

#include "cpu_adam/gradient_norm.hpp"
#include "runtime/engine/step/written_values.hpp"

namespace spillway::engine {

using plan::Op;
using plan::ValueKind;

UpdateOps::UpdateOps(const OpContext& context, StateOps& state)
    : context_(context),
      state_(state),
      kernel_(context.resources.kernel),
      types_{.format = kernel_.format,
             .gradient = kernel_.gradient_dtype,
             .parameter = kernel_.parameter_dtype},
      tile_update_(context.resources.workers,
                   plan::state_bytes(context.resources.placement.format,
                                     context.resources.placement.tile_parameters)) {}

void UpdateOps::round_gradient(const Op& op) const {
  const OpMemory memory = context_.memory_of(op);
  const plan::Workload& workload = context_.resources.workload;
  FinishedGradient gradient;
  gradient.sums =
      memory.device(memory.read(ValueKind::gradient_sum, op.block), context_.sum_bytes(op.block))
          .as<float>();
  gradient.parameters = workload.blocks[op.block].parameters.value();
  if (workload.tied_blocks().contains(op.block)) {
    const Bytes bytes{workload.tied_elements_of(op.block).value() * sizeof(float)};
    gradient.tied =
        memory.device(memory.read(ValueKind::tied_gradient_sum, op.block), bytes).as<float>();
  }
  gradient.rounded =
      memory.device(memory.write(ValueKind::gradient, op.block), context_.compute_bytes(op.block));
  gradient.dtype = workload.compute;
  if (memory.writes(ValueKind::total_gradient, op.block)) {
    gradient.home = memory.device(memory.write(ValueKind::total_gradient, op.block));
  }
  gradient.sums_rounds = workload.sums_gradients();
  gradient.first_round = op.round == 0;
  context_.resources.device_math.finish_gradient(gradient);
}

void UpdateOps::device_norm(const Op& op) const {
  const OpMemory memory = context_.memory_of(op);
  context_.resources.device_math.sum_squares(
      memory.device(memory.read(ValueKind::total_gradient, op.block)), types_.gradient,
      memory.device(memory.write(ValueKind::norm_leaves, op.tile)).as<double>());
}

/// Adds the gradients of a round, one of each rank where they add up one by one.
void UpdateOps::add_gradient(const Op& op) const {
  const OpMemory memory = context_.memory_of(op);
  const auto source = memory.host(memory.read(ValueKind::gradient, op.block));
  const auto bytes = memory.host(memory.write(ValueKind::total_gradient, op.block));
  auto* target = reinterpret_cast<float*>(bytes.data());
  const DType dtype = context_.resources.workload.compute;
  const std::size_t count = bytes.size() / sizeof(float);
  context_.resources.workers.parallel_for(
      count, kLeafParameters, [&](std::size_t first, std::size_t last) {
        for (std::uint32_t g = 0; g < context_.resources.workload.gradients_of_round(); ++g) {
          const std::byte* gradient = source.data() + (g * count + first) * size_of(dtype);
          cpu_adam::accumulate(context_.resources.isa, dtype, gradient,
                               {target + first, last - first}, op.round == 0 && g == 0);
        }
      });
}

void UpdateOps::host_norm(const Op& op) const {
  const OpMemory memory = context_.memory_of(op);
  const std::byte* gradient = memory.host(memory.read(ValueKind::total_gradient, op.block)).data();
  const auto bytes = memory.host(memory.write(ValueKind::norm_leaves, op.tile));
  const std::span leaves{reinterpret_cast<double*>(bytes.data()), bytes.size() / sizeof(double)};
  const std::size_t leaf = kLeafParameters * size_of(types_.gradient);
  context_.resources.workers.parallel_for(
      leaves.size(), 1, [&](std::size_t first, std::size_t last) {
        cpu_adam::sum_squares(context_.resources.isa, types_.gradient, gradient + first * leaf,
                              (last - first) * kLeafParameters,
                              leaves.subspan(first, last - first));
      });
}

cpu_adam::UpdateRange UpdateOps::tile_range(std::uint32_t tile, std::byte* state,
                                            const std::byte* gradient,
                                            std::byte* parameters) const {
  const plan::Tile& t = context_.resources.slots.tiles()[tile];
  cpu_adam::UpdateRange range = cpu_adam::tile_range(context_.resources.slots.layout(tile), state,
                                                     state, gradient, parameters, parameters);
  range.prefetch_distance = context_.resources.update_prefetch;
  range.block = t.block;
  range.index = t.first.value();
  return range;
}

UpdateOps::Groups UpdateOps::groups_of(const Op& op) const {
  const BlockGroups& parts = context_.resources.groups[op.block];
  const auto& scalars = update_of(op).groups;
  Groups groups;
  std::ranges::transform(parts, groups.begin(), [&](const GroupPart& part) {
    return cpu_adam::ParameterGroup{.end = part.end, .scalars = scalars[part.group]};
  });
  return groups;
}

void UpdateOps::device_update(const Op& op) const {
  SPILLWAY_ASSERT(context_.decisions->update.overrides.empty());
  const OpMemory memory = context_.memory_of(op);
  context_.resources.device_math.update(
      types_, groups_of(op),
      tile_range(op.tile, memory.device(memory.write(ValueKind::state, op.tile)).address(),
                 memory.device(memory.read(ValueKind::total_gradient, op.block)).address(),
                 memory.device(memory.write(ValueKind::parameters, op.block)).address()));
}

void UpdateOps::host_update(const Op& op) {
  const OpMemory memory = context_.memory_of(op);
  const StateSlots& slots = context_.resources.slots;
  const auto state = slots.state_of(op.tile, memory.host(memory.write(ValueKind::state, op.tile)));
  const auto parameters = memory.host(memory.write(ValueKind::parameters, op.block));
  const cpu_adam::UpdateRange whole = tile_range(
      op.tile, state.data(), memory.host(memory.read(ValueKind::total_gradient, op.block)).data(),
      parameters.data());
  const auto& overrides = update_of(op).overrides;
  const Groups same = overrides.empty() ? groups_of(op) : Groups{};
  // What another framework has computed with is what is updated.
  const bool follows_values = context_.resources.framework != nullptr;
  const std::span<const cpu_adam::ParameterGroup> groups =
      overrides.empty() ? std::span<const cpu_adam::ParameterGroup>(same) : overrides[op.block];
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
    context_.resources.store->verify(StateSlots::state(op.tile), sums.before);
    return state_.set_sums(op.tile, sums);
  }
  context_.resources.workers.parallel_for(
      whole.count, kLeafParameters, [&](std::size_t first, std::size_t last) {
        const auto part = cpu_adam::slice(kernel_, whole, first, last - first);
        if (follows_values) return update_from_values(kernel_, groups, part);
        cpu_adam::update(kernel_, groups, part);
      });
}

}  // namespace spillway::engine
