#include "runtime/engine/op_actions.hpp"

#include <algorithm>

#include "cpu_adam/gradient_norm.hpp"
#include "runtime/base/error.hpp"

namespace spillway::engine {

using plan::kNoSlot;
using plan::Op;
using plan::OpKind;
using plan::Tier;

OpActions::OpActions(OpResources resources)
    : resources_(std::move(resources)),
      kernel_(resources_.kernel),
      types_{.format = kernel_.format,
             .gradient = kernel_.gradient_dtype,
             .parameter = kernel_.parameter_dtype},
      state_checksums_(resources_.homes.tiles().size()),
      parameter_checksums_(resources_.homes.tiles().size()),
      piece_checksums_(nvme_swap::checksum_pieces(
          std::max(
              plan::slot_bytes(resources_.placement.format, resources_.placement.tile_parameters),
              plan::boundary_disk_bytes(resources_.workload))
              .value())),
      tile_update_(resources_.workers, plan::state_bytes(resources_.placement.format,
                                                         resources_.placement.tile_parameters)),
      writes_(resources_.homes.tiles().size()),
      copy_writes_(resources_.homes.tiles().size()),
      copies_(resources_.homes.tiles().size() + 1),
      boundary_moves_(resources_.placement.boundary_staging),
      boundary_checksums_(resources_.placement.boundary_staging),
      held_(resources_.placement.state_slots, kNoTile) {
  step_.commit.payload.reserve(nvme_swap::kMaxCommitPayload);
}

void OpActions::count(OpKind kind, std::size_t bytes) {
  moved_[static_cast<std::size_t>(kind)] += Bytes{bytes};
}

bool OpActions::skips(const Op& op) const {
  if (op.kind == OpKind::commit) return !step_.commit_due && step_.copy == nullptr;
  const bool from_disk = op.kind == OpKind::read_state && op.lane == plan::Lane::nvme_read;
  // What a later user of the slot reads may still lie there from before: its turn has not come.
  const bool first_user = op.held || !op.if_pending;
  if (from_disk && first_user && held_[op.slot] == op.tile) return true;
  return op.if_pending && !step_.update.pending;
}

void OpActions::enqueue(const Op& op, offload::Stream& stream) {
  Homes& homes = resources_.homes;
  switch (op.kind) {
    case OpKind::upload_params: {
      const auto source = homes.host_parameters(op.block);
      stream.upload(homes.parameters(op.block, op.slot), source);
      return count(op.kind, source.size());
    }
    case OpKind::download_grads: {
      const bool summed = op.gradient_slot == kNoSlot;
      const bool lands = resources_.workload.rounds > 1 && !summed;
      const auto target =
          lands ? homes.landing(op.block, op.gradient_slot) : homes.host_gradient(op.block);
      stream.download(target, summed ? homes.device_gradient(op.block)
                                     : homes.rounded(op.block, op.gradient_slot));
      return count(op.kind, target.size());
    }
    case OpKind::read_state: {
      // State that lives on the device, on its way to the disk.
      const StateSlots& slots = homes.slots();
      const auto target = homes.staging(op.tile, op.slot);
      held_[op.slot] = kNoTile;
      stream.download(slots.state_of(op.tile, target), homes.device_state(op.tile));
      if (slots.with_parameters()) {
        stream.download(slots.parameters_of(op.tile, target),
                        homes.device_parameters_of_tile(op.tile));
      }
      return count(op.kind, target.size());
    }
    case OpKind::save_activation:
    case OpKind::load_activation: return copy_boundary(op, stream);
    case OpKind::save_internals:
    case OpKind::load_internals: return copy_internals(op, stream);
    case OpKind::forward:
      if (op.block == resources_.workload.first_block(0)) {
        // Token ids are far below one block's parameters; they ride in the compute stream's order.
        stream.upload(homes.tokens(op.micro_batch).as<std::byte>(),
                      std::as_bytes(homes.host_tokens(op.round, op.micro_batch)));
      }
      return stream.submit([this, &op] { forward(op); });
    case OpKind::backward: return stream.submit([this, &op] { backward(op); });
    case OpKind::loss: return stream.submit([this, &op] { loss(op); });
    case OpKind::accumulate: return stream.submit([this, &op] { round_gradient(op); });
    case OpKind::grad_norm: return stream.submit([this, &op] { device_norm(op); });
    case OpKind::update: return stream.submit([this, &op] { device_update(op); });
    case OpKind::checksum:
    case OpKind::write_state:
    case OpKind::spill_activation:
    case OpKind::fetch_activation:
    case OpKind::commit: break;
  }
  SPILLWAY_ASSERT(false && "no stream runs this kind of op");
}

Ticket OpActions::start(const Op& op) {
  cpu_adam::WorkerPool& workers = resources_.workers;
  switch (op.kind) {
    case OpKind::read_state: {
      const auto target = state_of(op);
      held_[op.slot] = op.tile;  // an update keeps it so: what it writes is the newest
      count(op.kind, target.size());
      return resources_.store.read(StateSlots::state(op.tile), target);
    }
    case OpKind::write_state: return write(op);
    case OpKind::spill_activation: return spill(op);
    case OpKind::fetch_activation: return fetch(op);
    case OpKind::commit: return commit();
    case OpKind::accumulate: return workers.submit([this, &op] { host_accumulate(op); });
    case OpKind::grad_norm: return workers.submit([this, &op] { host_norm(op); });
    case OpKind::update: return workers.submit([this, &op] { host_update(op); });
    case OpKind::checksum: return workers.submit([this, &op] { host_checksum(op); });
    case OpKind::upload_params:
    case OpKind::download_grads:
    case OpKind::save_activation:
    case OpKind::load_activation:
    case OpKind::save_internals:
    case OpKind::load_internals:
    case OpKind::forward:
    case OpKind::backward:
    case OpKind::loss: break;
  }
  SPILLWAY_ASSERT(false && "no worker runs this kind of op");
  return {};
}

std::span<std::byte> OpActions::state_of(const Op& op) {
  Homes& homes = resources_.homes;
  if (op.slot == kNoSlot) return homes.host_state(op.tile);
  return homes.slots().state_of(op.tile, homes.staging(op.tile, op.slot));
}

std::span<const std::byte> OpActions::parameters_to_write(const Op& op) {
  Homes& homes = resources_.homes;
  const std::uint32_t block = homes.tiles()[op.tile].block;
  if (resources_.placement.blocks[block].state != Tier::device) {
    return homes.host_parameters_of_tile(op.tile);
  }
  return homes.slots().parameters_of(op.tile, homes.staging(op.tile, op.slot));
}

Ticket OpActions::write_slot(const Op& op, nvme_swap::TileStore& store, TicketPairs& pairs) {
  const StateSlots& slots = resources_.homes.slots();
  Ticket state = store.write(StateSlots::state(op.tile), state_of(op), state_checksums_[op.tile]);
  if (!slots.with_parameters()) return state;
  return pairs.join(op.tile, std::move(state),
                    store.write(slots.parameters(op.tile), parameters_to_write(op),
                                parameter_checksums_[op.tile]));
}

Ticket OpActions::write(const Op& op) {
  count(op.kind, state_of(op).size());
  if (resources_.homes.slots().with_parameters()) count(op.kind, parameters_to_write(op).size());
  Ticket written = write_slot(op, resources_.store, writes_);
  if (step_.copy == nullptr) return written;
  return copies_.join(op.tile, std::move(written), write_slot(op, *step_.copy, copy_writes_));
}

Ticket OpActions::commit() {
  Ticket committed;
  if (step_.commit_due) committed = resources_.store.commit(step_.commit);
  if (step_.copy == nullptr) return committed;
  const auto slot = static_cast<std::uint32_t>(resources_.homes.tiles().size());
  return copies_.join(slot, std::move(committed), step_.copy->commit(step_.commit));
}

offload::DeviceSpan<const std::byte> OpActions::input_of(const Op& op) {
  const std::uint32_t layer = resources_.workload.layer_of(op.block);
  if (layer == 0) return {};
  return resources_.homes.boundaries().activation(layer - 1, op.micro_batch, op.input_slot);
}

offload::DeviceSpan<const std::byte> OpActions::vectors() {
  if (!resources_.workload.tiled) return {};
  return resources_.homes.parameters(0, kNoSlot);
}

model::ForwardArguments OpActions::forward_arguments(const Op& op, bool save) {
  Homes& homes = resources_.homes;
  const auto tokens = homes.tokens(op.micro_batch);
  const std::uint32_t layer = resources_.workload.layer_of(op.block);
  model::ForwardArguments arguments;
  arguments.block = op.block;
  if (op.kind == OpKind::forward || layer != 0) {
    arguments.parameters = homes.parameters(op.block, op.slot);
  }
  arguments.shared = vectors();
  arguments.tokens = tokens.subspan(0, tokens.size() / 2);
  arguments.input = input_of(op);
  BoundaryHomes& boundaries = homes.boundaries();
  if (op.kind != OpKind::forward) {
    arguments.output = boundaries.recomputed(layer, op.micro_batch);
  } else if (!op.again) {
    arguments.output = boundaries.activation(layer, op.micro_batch, op.boundary_slot);
  }
  if (save) arguments.saved = homes.internals().device(op);
  arguments.workspace = homes.workspace();
  return arguments;
}

void OpActions::forward(const Op& op) {
  const plan::Workload& workload = resources_.workload;
  const bool keep = resources_.placement.blocks[op.block].keep && step_.training;
  // Tiles of a layer meet in what it saves, whether that is kept or not.
  const bool meets = workload.tiled && workload.layer_of(op.block) > 0;
  resources_.transformer.forward(forward_arguments(op, keep || meets));
}

void OpActions::backward(const Op& op) {
  Homes& homes = resources_.homes;
  const plan::Workload& workload = resources_.workload;
  const bool recompute =
      !workload.tiled && op.block != 0 && !resources_.placement.blocks[op.block].keep;
  const model::ForwardArguments again = forward_arguments(op, true);
  if (recompute) resources_.transformer.forward(again);
  model::BackwardArguments arguments;
  arguments.block = op.block;
  arguments.parameters = again.parameters;
  arguments.shared = again.shared;
  arguments.tokens = again.tokens;
  arguments.input = again.input;
  arguments.saved = again.saved;
  if (workload.tiled) {
    arguments.carried = homes.carried(op.micro_batch);
    arguments.shared_gradients = homes.accumulator(0, homes.vectors_slot());
  }
  arguments.boundary_gradient = homes.boundaries().gradient(op.micro_batch, op.boundary_slot);
  arguments.gradients = homes.accumulator(op.block, op.gradient_slot);
  arguments.first = op.micro_batch == 0;
  arguments.workspace = again.workspace;
  resources_.transformer.backward(arguments);
}

void OpActions::loss(const Op& op) {
  Homes& homes = resources_.homes;
  const plan::Workload& workload = resources_.workload;
  const auto tokens = homes.tokens(op.micro_batch);
  const bool train = op.gradient_slot != kNoSlot;
  model::LossArguments arguments;
  arguments.block = op.block;
  arguments.parameters = homes.parameters(op.block, op.slot);
  arguments.shared = vectors();
  if (workload.tied_head) arguments.tied_parameters = homes.parameters(0, op.tied_slot);
  arguments.targets = tokens.subspan(tokens.size() / 2, tokens.size() / 2);
  arguments.input = input_of(op);
  arguments.loss_sum = homes.loss_sum(op.round, op.micro_batch);
  if (workload.tiled) arguments.carried = homes.carried(op.micro_batch);
  arguments.workspace = homes.workspace();
  if (train) {
    arguments.gradient_scale = step_.loss_gradient_scale;
    arguments.boundary_gradient = homes.boundaries().gradient(op.micro_batch, op.boundary_slot);
    arguments.gradients = homes.accumulator(op.block, op.gradient_slot);
    if (workload.tied_head) arguments.tied_gradients = homes.tied_accumulator();
    if (workload.tiled) arguments.shared_gradients = homes.accumulator(0, homes.vectors_slot());
    arguments.first = op.micro_batch == 0;
  }
  resources_.transformer.loss(arguments);
}

void OpActions::round_gradient(const Op& op) {
  Homes& homes = resources_.homes;
  RoundGradient gradient;
  gradient.sums = homes.accumulator(op.block, op.gradient_slot);
  gradient.parameters = resources_.workload.blocks[op.block].parameters.value();
  if (op.block == 0 && resources_.workload.tied_head) gradient.tied = homes.tied_accumulator();
  gradient.rounded = homes.rounded(op.block, op.gradient_slot);
  gradient.dtype = resources_.workload.compute;
  if (plan::gradient_on_device(resources_.workload, resources_.placement, op.block)) {
    gradient.home = homes.device_gradient(op.block);
  }
  gradient.sums_rounds = resources_.workload.rounds > 1;
  gradient.first_round = op.round == 0;
  resources_.device_math.round(gradient);
}

void OpActions::device_norm(const Op& op) {
  const plan::Tile& tile = resources_.homes.tiles()[op.tile];
  const std::size_t size = size_of(types_.gradient);
  const auto gradient = resources_.homes.device_gradient(tile.block)
                            .subspan(tile.first.value() * size, tile.count.value() * size);
  resources_.device_math.sum_squares(gradient, types_.gradient,
                                     resources_.homes.device_leaves(op.tile));
}

void OpActions::host_accumulate(const Op& op) {
  const auto source = resources_.homes.landing(op.block, op.gradient_slot);
  const auto bytes = resources_.homes.host_gradient(op.block);
  auto* target = reinterpret_cast<float*>(bytes.data());
  const DType dtype = resources_.workload.compute;
  resources_.workers.parallel_for(
      bytes.size() / sizeof(float), kLeafParameters, [&](std::size_t first, std::size_t last) {
        cpu_adam::accumulate(resources_.isa, dtype, source.data() + first * size_of(dtype),
                             {target + first, last - first}, op.round == 0);
      });
}

void OpActions::host_norm(const Op& op) {
  const plan::Tile& tile = resources_.homes.tiles()[op.tile];
  const std::size_t size = size_of(types_.gradient);
  const std::byte* gradient =
      resources_.homes.host_gradient(tile.block).data() + tile.first.value() * size;
  const auto leaves = resources_.homes.leaves_of_tile(op.tile);
  resources_.workers.parallel_for(leaves.size(), 1, [&](std::size_t first, std::size_t last) {
    cpu_adam::sum_squares(resources_.isa, types_.gradient,
                          gradient + first * kLeafParameters * size,
                          (last - first) * kLeafParameters, leaves.subspan(first, last - first));
  });
}

cpu_adam::UpdateRange OpActions::tile_range(std::uint32_t tile, std::byte* state,
                                            const std::byte* block_gradient,
                                            std::byte* parameters) const {
  const plan::Tile& t = resources_.homes.tiles()[tile];
  const std::byte* gradient = block_gradient + t.first.value() * size_of(types_.gradient);
  cpu_adam::UpdateRange range = cpu_adam::tile_range(resources_.homes.slots().layout(tile), state,
                                                     state, gradient, parameters, parameters);
  range.prefetch_distance = resources_.update_prefetch;
  range.block = t.block;
  range.index = t.first.value();
  return range;
}

std::array<cpu_adam::ParameterGroup, 2> OpActions::groups_of(std::uint32_t block) const {
  return {{{.end = resources_.decayed[block], .scalars = step_.update.decayed},
           {.end = resources_.workload.blocks[block].padded_parameters.value(),
            .scalars = step_.update.plain}}};
}

void OpActions::device_update(const Op& op) {
  Homes& homes = resources_.homes;
  resources_.device_math.update(types_, groups_of(op.block),
                                tile_range(op.tile, homes.device_state(op.tile).address(),
                                           homes.device_gradient(op.block).address(),
                                           homes.device_parameters_of_tile(op.tile).address()));
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
  Homes& homes = resources_.homes;
  const std::span<std::byte> state = state_of(op);
  const std::span<std::byte> parameters = homes.host_parameters_of_tile(op.tile);
  const cpu_adam::UpdateRange whole =
      tile_range(op.tile, state.data(), homes.host_gradient(op.block).data(), parameters.data());
  const auto groups = groups_of(op.block);
  if (op.slot != kNoSlot) {
    const TileChecksums sums = tile_update_.run(
        {.kernel = kernel_,
         .groups = groups,
         .range = whole,
         .layout = homes.slots().layout(op.tile),
         .state = state,
         .parameters = homes.slots().with_parameters() ? parameters : std::span<std::byte>{}});
    // A tile that is not what was written ends the run here, before anything of it is on its way to
    // the disk or the device.
    resources_.store.verify(StateSlots::state(op.tile), sums.before);
    state_checksums_[op.tile] = sums.state;
    parameter_checksums_[op.tile] = sums.parameters;
    return;
  }
  resources_.workers.parallel_for(
      whole.count, kLeafParameters, [&](std::size_t first, std::size_t last) {
        cpu_adam::update(kernel_, groups, cpu_adam::slice(kernel_, whole, first, last - first));
      });
}

void OpActions::host_checksum(const Op& op) {
  state_checksums_[op.tile] = checksum(state_of(op));
  if (resources_.homes.slots().with_parameters()) {
    parameter_checksums_[op.tile] = checksum(parameters_to_write(op));
  }
}

}  // namespace spillway::engine
