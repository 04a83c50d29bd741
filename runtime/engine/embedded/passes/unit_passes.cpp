#include "runtime/engine/embedded/passes/unit_passes.hpp"

#include <fmt/format.h>

#include "runtime/base/error.hpp"

namespace spillway::engine {

UnitPasses::UnitPasses(const EmbeddedLayout& layout, EmbeddedValues& values, PassGate& gate,
                       PlanRunner& runner)
    : layout_(layout), values_(values), gate_(gate), runner_(runner) {}

void UnitPasses::check_unit(std::uint32_t unit) const {
  check(layout_.streams(), ErrorCode::invalid_argument,
        "no parameter is streamed; give device_memory, and units to the parameters");
  check_number("unit", unit, layout_.units());
}

void UnitPasses::check_left() const {
  const Lock lock(mutex_);
  check(!inside_, ErrorCode::invalid_argument,
        fmt::format("unit {} was entered and not left; leave it first, also where its pass has "
                    "failed",
                    inside_.value_or(0)));
}

void UnitPasses::check_inside(std::uint32_t block, const std::string& name) const {
  const Lock lock(mutex_);
  check(inside_ && block == layout_.residents + *inside_, ErrorCode::invalid_argument,
        fmt::format("\"{}\" is not on the device: enter its unit first", name));
}

void UnitPasses::begin(EmbeddedPlan plan) {
  runner_.start(plan);
  entered_ = 0;
  if (!layout_.streams()) return;
  for (std::uint32_t block = 0; block < layout_.residents; ++block) gate_.complete(block);
}

/// Begins at the first unit of a plan, unless this one comes later in the plan that runs: the
/// passes between are over as they begin.
void UnitPasses::enter(std::uint32_t unit, EmbeddedPass pass) {
  check_unit(unit);
  const Lock lock(mutex_);
  check(!inside_, ErrorCode::invalid_argument,
        fmt::format("unit {} is entered before unit {} is left", unit, inside_.value_or(0)));
  check(runner_.phase() != PlanRunner::Phase::gathered, ErrorCode::invalid_argument,
        fmt::format("unit {} is entered after grad_norm; call step or discard_gradients first",
                    unit));
  const bool forward = pass == EmbeddedPass::forward;
  const EmbeddedPlan plan = plan_of(pass);
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

void UnitPasses::leave(std::uint32_t unit, const offload::ExternalWork& readers) {
  check_unit(unit);
  const Lock lock(mutex_);
  check(inside_ == unit, ErrorCode::invalid_argument,
        fmt::format("unit {} is left, but was not entered", unit));
  values_.order_uploads(readers);
  inside_.reset();
  gate_.complete(layout_.residents + unit);
}

void UnitPasses::forget_uploads() {
  check_left();
  if (layout_.streams() && runner_.phase() != PlanRunner::Phase::gathered) runner_.park();
}

std::span<std::byte> UnitPasses::parameter(std::uint32_t parameter) {
  const ParameterRange& at = layout_.ranges[parameter];
  check_inside(at.block, layout_.names[parameter]);
  const std::size_t size = size_of(layout_.workload.compute);
  return {gate_.pass(at.block).parameters + at.first * size, at.count * size};
}

std::span<std::byte> UnitPasses::frozen(std::uint32_t frozen) {
  const FrozenRange& at = layout_.frozen[frozen];
  check_inside(*at.block, layout_.frozen_names[frozen]);
  return {gate_.pass(*at.block).frozen + at.first, at.bytes};
}

void UnitPasses::await_update(std::uint32_t parameter, std::uint64_t update) {
  const Lock lock(mutex_);
  if (runner_.update() != update) return runner_.check_sound();
  check(!inside_, ErrorCode::invalid_argument,
        fmt::format("\"{}\" is waited for before unit {} is left", layout_.names[parameter],
                    inside_.value_or(0)));
  runner_.park();
}

}  // namespace spillway::engine
