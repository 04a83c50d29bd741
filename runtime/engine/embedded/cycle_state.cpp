// The state of parameters between plans: one of them at a time, and checkpoints of all.
#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/engine/embedded/cycle.hpp"
#include "runtime/engine/embedded/values_source.hpp"

namespace spillway::engine {
namespace {

constexpr const char* kCheckpointName = "state";

nvme_swap::StoreOptions checkpoint_store(const std::filesystem::path& directory) {
  nvme_swap::StoreOptions options;
  options.directories = {directory};
  options.name = kCheckpointName;
  options.slots = 1;
  return options;
}

template <class T>
std::span<T> slice(std::span<T> whole, std::uint64_t first, std::uint64_t count) {
  return whole.empty() ? whole : whole.subspan(first, count);
}

}  // namespace

template <class Visit>
void EmbeddedCycle::visit_parts(const EmbeddedPlace& place, const Visit& visit) {
  const plan::Buffer tiles = slots().tiles_of(plan::PoolKind::host_state, place.block);
  for (std::uint32_t tile = tiles.first; tile < tiles.first + tiles.count; ++tile) {
    const plan::Tile& t = slots().tiles()[tile];
    const std::uint64_t first = std::max(place.first, t.first.value());
    const std::uint64_t end =
        std::min(place.first + place.count, t.first.value() + t.count.value());
    if (first >= end) continue;
    visit(Part{.tile = tile,
               .first = first - t.first.value(),
               .of_parameter = first - place.first,
               .count = end - first,
               .whole = end - first == t.count.value()});
  }
}

cpu_adam::StateLayout EmbeddedCycle::layout_of(const Part& part) const {
  const cpu_adam::StateLayout& tile = slots().layout(part.tile);
  return part.whole ? tile : cpu_adam::part_of(tile, part.first, part.count);
}

std::byte* EmbeddedCycle::parameters_of(const Part& part) {
  const std::size_t size = size_of(workload().compute);
  return engine().memory().host({plan::PoolKind::host_parameters, part.tile}).data() +
         part.first * size;
}

std::span<std::byte> EmbeddedCycle::staging_of(std::uint32_t tile) {
  return slots().slot_of(tile, engine().memory().host({plan::PoolKind::state_staging}));
}

std::byte* EmbeddedCycle::state_of(const Part& part, Content content) {
  const std::uint32_t tile = part.tile;
  if (engine().store() == nullptr) {
    return engine().memory().host({plan::PoolKind::host_state, tile}).data();
  }
  const std::span<std::byte> slot = staging_of(tile);
  if (staged_ != tile) {
    unstage();
    engine().actions().forget_staged();
    if (content == Content::kept) slots().load_state(*engine().store(), tile, slot);
    staged_ = tile;
  }
  return slot.data();
}

void EmbeddedCycle::unstage() {
  if (staged_is_new_) {
    const std::span<std::byte> slot = staging_of(*staged_);
    if (slots().with_parameters()) {
      std::ranges::copy(engine().memory().host({plan::PoolKind::host_parameters, *staged_}),
                        slots().parameters_of(*staged_, slot).begin());
    }
    slots().save(*engine().store(), *staged_, slot);
    staged_is_new_ = false;
  }
  staged_.reset();
}

void EmbeddedCycle::read_part(const Part& part, const cpu_adam::WideState& wide) {
  cpu_adam::unpack_state(layout_of(part), state_of(part, Content::kept), parameters_of(part), wide);
}

void EmbeddedCycle::write_part(const Part& part, const cpu_adam::ConstWideState& wide) {
  const bool replaces = part.whole && !wide.master.empty();
  std::byte* state = state_of(part, replaces ? Content::replaced : Content::kept);
  if (wide.master.empty()) {
    cpu_adam::pack_moments(layout_of(part), wide, state);
  } else {
    std::byte* parameters = parameters_of(part);
    cpu_adam::pack_state(layout_of(part), wide, state, parameters);
    if (!slots().with_parameters()) {
      cpu_adam::cast_parameters(isa_, workload().compute, wide.master.data(), parameters,
                                part.count);
    }
  }
  staged_is_new_ = engine().store() != nullptr;
}

void EmbeddedCycle::read_state(const EmbeddedPlace& place, const cpu_adam::WideState& wide) {
  const DType dtype = workload().compute;
  visit_parts(place, [&](const Part& part) {
    const std::span<float> masters = slice(wide.master, part.of_parameter, part.count);
    read_part(part, {.master = masters,
                     .m = slice(wide.m, part.of_parameter, part.count),
                     .v = slice(wide.v, part.of_parameter, part.count)});
    // The next update goes on from there, too.
    follow_values(isa_, dtype, {parameters_of(part), part.count * size_of(dtype)}, masters);
  });
}

void EmbeddedCycle::write_state(const EmbeddedPlace& place, const cpu_adam::ConstWideState& wide) {
  visit_parts(place, [&](const Part& part) {
    write_part(part, {.master = slice(wide.master, part.of_parameter, part.count),
                      .m = slice(wide.m, part.of_parameter, part.count),
                      .v = slice(wide.v, part.of_parameter, part.count)});
  });
  // Others may have been written there, and not be taken yet.
  if (is_resident(place) && !wide.master.empty()) upload_resident(place);
}

bool EmbeddedCycle::take_part(const Part& part, TakenValues which) {
  const DType dtype = workload().compute;
  const std::span<const std::byte> written(parameters_of(part), part.count * size_of(dtype));
  std::vector<float> master(part.count), m(part.count), v(part.count);
  read_part(part, {.master = master, .m = m, .v = v});
  if (which == TakenValues::all) {
    widen(dtype, written, master);
  } else if (!follow_values(isa_, dtype, written, master)) {
    // Moments of a short format would be rounded again. Its values are a part of the slot.
    staged_is_new_ |= staged_.has_value() && slots().with_parameters();
    return false;
  }
  write_part(part, {.master = master, .m = m, .v = v});
  return true;
}

void EmbeddedCycle::take_values(const EmbeddedPlace& place, TakenValues which) {
  bool changed = false;
  visit_parts(place, [&](const Part& part) { changed |= take_part(part, which); });
  if (changed && is_resident(place)) upload_resident(place);
}

void EmbeddedCycle::save(const std::filesystem::path& directory) {
  for (const std::uint32_t parameter : in_order_) {
    take_values(layout_.places[parameter], TakenValues::changed);
  }
  unstage();
  copy_now(checkpoint_store(directory));
}

std::unique_ptr<SavedState> EmbeddedCycle::open_checkpoint(const std::filesystem::path& directory) {
  SavedShape shape{.format = placement().format, .tile_parameters = placement().tile_parameters};
  for (const plan::BlockShape& block : workload().blocks) {
    shape.blocks.push_back(block.padded_parameters);
  }
  auto saved = std::make_unique<SavedState>(
      shape, std::vector<nvme_swap::StoreOptions>{checkpoint_store(directory)});
  saved->verify();
  return saved;
}

void EmbeddedCycle::load(const SavedState& saved) {
  engine().actions().forget_staged();
  staged_.reset();  // all of it is replaced
  staged_is_new_ = false;
  state_io().adopt(saved);
  state_ = saved.state();
  set_updates(state_.updates);
}

}  // namespace spillway::engine
