// Parameters that are streamed: the framework enters a unit for a pass, and leaves it.
#include <fmt/format.h>

#include "runtime/base/error.hpp"
#include "runtime/base/mutex.hpp"
#include "runtime/engine/embedded/implementation.hpp"

namespace spillway::engine {

void EmbeddedTrainer::Implementation::check_unit(std::uint32_t unit) const {
  check_process();
  check(streams(), ErrorCode::invalid_argument,
        "no parameter is streamed; give device_memory, and units to the parameters");
  check(unit < layout_.units(), ErrorCode::invalid_argument,
        fmt::format("there is no unit {}; there are {}, counted from 0", unit, layout_.units()));
}

/// Throws while a unit is entered: a plan that ends, or another one, gives its memory away.
void EmbeddedTrainer::Implementation::check_left() const {
  const Lock lock(passes_);
  check(!inside_, ErrorCode::invalid_argument,
        fmt::format("unit {} was entered and not left; leave it first, also where its pass has "
                    "failed",
                    inside_.value_or(0)));
}

/// Starts a plan. Blocks of no unit have no passes, and units wait for them to be entered.
void EmbeddedTrainer::Implementation::begin(EmbeddedPlan plan) {
  runner_.start(plan);
  for (std::uint32_t block = 0; streams() && block < layout_.residents; ++block) {
    gate_.complete(block);
  }
  entered_ = 0;
}

/// Begins at the first unit of a plan, unless this one comes later in the plan that runs: the
/// passes between are over as they begin.
void EmbeddedTrainer::Implementation::enter(std::uint32_t unit, EmbeddedPass pass) {
  check_unit(unit);
  const Lock lock(passes_);
  check(!inside_, ErrorCode::invalid_argument,
        fmt::format("unit {} is entered before unit {} is left", unit, inside_.value_or(0)));
  check(runner_.phase() != Phase::gathered, ErrorCode::invalid_argument,
        fmt::format("unit {} is entered after grad_norm; call step or discard_gradients first",
                    unit));
  const bool forward = pass == EmbeddedPass::forward;
  const EmbeddedPlan plan = forward ? EmbeddedPlan::step : EmbeddedPlan::backward;
  const auto block_at = [&](std::uint32_t place) {
    return layout_.residents + (forward ? place : layout_.units() - 1 - place);
  };
  const std::uint32_t place = forward ? unit : layout_.units() - 1 - unit;
  if (!runner_.runs(plan) || place < entered_) {
    runner_.park();
    begin(plan);
  }
  for (; entered_ < place; ++entered_) gate_.complete(block_at(entered_));
  ++entered_;
  const std::uint32_t block = block_at(place);
  const std::uint64_t number = runner_.number();
  const bool begun =
      forward ? gate_.wait_for_forward(block, number) : gate_.wait_for_backward(block, number);
  if (!begun) runner_.check_sound();
  inside_ = unit;
}

void EmbeddedTrainer::Implementation::forget_uploads() {
  check_process();
  check_left();
  if (streams() && runner_.phase() != Phase::gathered) runner_.park();
}

std::span<std::byte> EmbeddedTrainer::Implementation::resident_values(const EmbeddedPlace& at) {
  const auto values = cycle_.resident_values(at);
  return {values.address(), values.size()};
}

std::span<std::byte> EmbeddedTrainer::Implementation::device_values(std::uint32_t parameter) {
  const EmbeddedPlace& at = place(parameter);
  if (cycle_.is_resident(at)) return resident_values(at);
  check_inside(at.block, names_[parameter]);
  const std::size_t size = size_of(options_.dtype);
  return {gate_.pass(at.block).parameters + at.first * size, at.count * size};
}

void EmbeddedTrainer::Implementation::check_inside(std::uint32_t block,
                                                   const std::string& name) const {
  const Lock lock(passes_);
  check(inside_ && block == layout_.residents + *inside_, ErrorCode::invalid_argument,
        fmt::format("\"{}\" is not on the device: enter its unit first", name));
}

const FrozenPlace& EmbeddedTrainer::Implementation::frozen_place(std::uint32_t frozen) const {
  check_process();
  check(frozen < layout_.frozen.size(), ErrorCode::invalid_argument,
        fmt::format("there is no frozen tensor {}; there are {}, counted from 0", frozen,
                    layout_.frozen.size()));
  return layout_.frozen[frozen];
}

std::span<std::byte> EmbeddedTrainer::Implementation::frozen_values(std::uint32_t frozen) {
  return cycle_.frozen(frozen_place(frozen));
}

std::span<std::byte> EmbeddedTrainer::Implementation::device_frozen(std::uint32_t frozen) {
  const FrozenPlace& at = frozen_place(frozen);
  if (!at.block) return cycle_.frozen(at);
  check_inside(*at.block, frozen_names_[frozen]);
  return {gate_.pass(*at.block).frozen + at.first, at.bytes};
}

void EmbeddedTrainer::Implementation::leave(std::uint32_t unit,
                                            const offload::ForeignWork& readers) {
  check_unit(unit);
  const Lock lock(passes_);
  check(inside_ == unit, ErrorCode::invalid_argument,
        fmt::format("unit {} is left, but was not entered", unit));
  cycle_.order_uploads(readers);
  inside_.reset();
  gate_.complete(layout_.residents + unit);
}

}  // namespace spillway::engine
