#include "runtime/engine/embedded/values/parameter_state.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cpu_adam/adam.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/step/written_values.hpp"

namespace spillway::engine {
namespace {

template <class T>
std::span<T> slice(std::span<T> whole, std::uint64_t first, std::uint64_t count) {
  return whole.empty() ? whole : whole.subspan(first, count);
}

}  // namespace

ParameterState::ParameterState(StepEngine& engine, EmbeddedValues& values,
                               const EmbeddedLayout& layout)
    : engine_(engine),
      values_(values),
      layout_(layout),
      slots_(engine.slots()),
      dtype_(engine.workload().compute),
      isa_(engine.isa()),
      torn_(layout.ranges.size()) {}

void ParameterState::check_whole(std::uint32_t parameter) const {
  check(!torn_[parameter].any(), ErrorCode::corrupt_data,
        fmt::format("the state of \"{}\" is new in a part alone, since a call that was to replace "
                    "it has failed; load a checkpoint, or make that call again",
                    layout_.names[parameter]));
}

void ParameterState::check_whole() const {
  const auto torn = std::ranges::find_if(torn_, &Torn::any);
  if (torn != torn_.end()) check_whole(static_cast<std::uint32_t>(torn - torn_.begin()));
}

void ParameterState::begin_replacement() {
  std::ranges::fill(torn_, Torn{.masters = true, .moments = true});
  staged_.reset();  // all of it is replaced
  staged_is_new_ = false;
}

void ParameterState::end_replacement() { std::ranges::fill(torn_, Torn{}); }

template <class Visit>
void ParameterState::visit_pieces(const ParameterRange& range, const Visit& visit) {
  const plan::Buffer tiles = slots_.tiles_of(plan::PoolKind::host_state, range.block);
  for (std::uint32_t tile = tiles.first; tile < tiles.first + tiles.count; ++tile) {
    const plan::Tile& t = slots_.tiles()[tile];
    const std::uint64_t first = std::max(range.first, t.first.value());
    const std::uint64_t end =
        std::min(range.first + range.count, t.first.value() + t.count.value());
    if (first >= end) continue;
    visit(Piece{.tile = tile,
                .first = first - t.first.value(),
                .of_parameter = first - range.first,
                .count = end - first,
                .whole = end - first == t.count.value()});
  }
}

cpu_adam::StateLayout ParameterState::layout_of(const Piece& piece) const {
  const cpu_adam::StateLayout& tile = slots_.layout(piece.tile);
  return piece.whole ? tile : cpu_adam::part_of(tile, piece.first, piece.count);
}

std::byte* ParameterState::values_of(const Piece& piece) {
  const std::size_t size = size_of(dtype_);
  return engine_.memory().host({plan::PoolKind::host_parameters, piece.tile}).data() +
         piece.first * size;
}

std::span<std::byte> ParameterState::staging_of(std::uint32_t tile) {
  return slots_.slot_of(tile, engine_.borrow_staging());
}

std::byte* ParameterState::state_of(const Piece& piece, Content content) {
  const std::uint32_t tile = piece.tile;
  if (engine_.store() == nullptr) {
    return engine_.memory().host({plan::PoolKind::host_state, tile}).data();
  }
  const std::span<std::byte> slot = staging_of(tile);
  if (staged_ != tile) {
    unstage();
    if (content == Content::kept) slots_.load_state(*engine_.store(), tile, slot);
    staged_ = tile;
  }
  return slot.data();
}

void ParameterState::unstage() {
  if (staged_is_new_) {
    const std::span<std::byte> slot = staging_of(*staged_);
    if (slots_.with_parameters()) {
      std::ranges::copy(engine_.memory().host({plan::PoolKind::host_parameters, *staged_}),
                        slots_.parameters_of(*staged_, slot).begin());
    }
    slots_.save(*engine_.store(), *staged_, slot);
    staged_is_new_ = false;
  }
  staged_.reset();
}

void ParameterState::read_piece(const Piece& piece, const cpu_adam::WideState& wide) {
  cpu_adam::unpack_state(layout_of(piece), state_of(piece, Content::kept), values_of(piece), wide);
}

void ParameterState::write_piece(const Piece& piece, const cpu_adam::ConstWideState& wide) {
  const bool replaces = piece.whole && !wide.master.empty();
  std::byte* state = state_of(piece, replaces ? Content::replaced : Content::kept);
  if (wide.master.empty()) {
    cpu_adam::pack_moments(layout_of(piece), wide, state);
  } else {
    std::byte* parameters = values_of(piece);
    cpu_adam::pack_state(layout_of(piece), wide, state, parameters);
    if (!slots_.with_parameters()) {
      cpu_adam::cast_parameters(isa_, dtype_, wide.master.data(), parameters, piece.count);
    }
  }
  staged_is_new_ = engine_.store() != nullptr;
}

bool ParameterState::take_piece(const Piece& piece, TakenValues which) {
  const std::span<const std::byte> written(values_of(piece), piece.count * size_of(dtype_));
  std::vector<float> master(piece.count), m(piece.count), v(piece.count);
  read_piece(piece, {.master = master, .m = m, .v = v});
  if (which == TakenValues::all) {
    widen(dtype_, written, master);
  } else if (!follow_values(isa_, dtype_, written, master)) {
    // Moments of a short format would be rounded again. Its values are a part of the slot.
    staged_is_new_ |= staged_.has_value() && slots_.with_parameters();
    return false;
  }
  write_piece(piece, {.master = master, .m = m, .v = v});
  return true;
}

void ParameterState::follow(const ParameterRange& range, TakenValues which) {
  bool changed = false;
  visit_pieces(range, [&](const Piece& piece) { changed |= take_piece(piece, which); });
  if (changed && values_.is_resident(range)) values_.upload(range);
}

void ParameterState::read(std::uint32_t parameter, const cpu_adam::WideState& wide) {
  check_whole(parameter);
  visit_pieces(layout_.ranges[parameter], [&](const Piece& piece) {
    const std::span<float> masters = slice(wide.master, piece.of_parameter, piece.count);
    read_piece(piece, {.master = masters,
                       .m = slice(wide.m, piece.of_parameter, piece.count),
                       .v = slice(wide.v, piece.of_parameter, piece.count)});
    // The next update goes on from there, too.
    follow_values(isa_, dtype_, {values_of(piece), piece.count * size_of(dtype_)}, masters);
  });
}

void ParameterState::write(std::uint32_t parameter, const cpu_adam::ConstWideState& wide) {
  const bool keeps_master = wide.master.empty();
  if (keeps_master && torn_[parameter].masters) check_whole(parameter);
  torn_[parameter] = {.masters = !keeps_master, .moments = true};
  const ParameterRange& range = layout_.ranges[parameter];
  visit_pieces(range, [&](const Piece& piece) {
    write_piece(piece, {.master = slice(wide.master, piece.of_parameter, piece.count),
                        .m = slice(wide.m, piece.of_parameter, piece.count),
                        .v = slice(wide.v, piece.of_parameter, piece.count)});
  });
  // Others may have been written there, and not be taken yet.
  if (values_.is_resident(range) && !keeps_master) values_.upload(range);
  torn_[parameter] = {};
}

void ParameterState::take_values(std::uint32_t parameter, const offload::ExternalWork& writers,
                                 TakenValues which) {
  const ParameterRange& range = layout_.ranges[parameter];
  values_.order_downloads(writers);
  if (values_.is_resident(range)) values_.download(range);
  torn_[parameter].masters = true;
  follow(range, which);
  torn_[parameter].masters = false;
}

void ParameterState::settle() {
  for (const std::uint32_t parameter : layout_.order) {
    follow(layout_.ranges[parameter], TakenValues::changed);
  }
  unstage();
}

}  // namespace spillway::engine
