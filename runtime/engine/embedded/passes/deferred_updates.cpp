#include "runtime/engine/embedded/passes/deferred_updates.hpp"

#include <fmt/format.h>

#include <optional>

#include "runtime/base/error.hpp"

namespace spillway::engine {

DeferredUpdates::DeferredUpdates(const EmbeddedLayout& layout, PassGate& gate, PlanRunner& runner,
                                 UnitPasses& passes)
    : layout_(layout),
      gate_(gate),
      runner_(runner),
      passes_(passes),
      waited_(layout.workload.blocks.size()) {}

void DeferredUpdates::wait(std::uint32_t parameter) {
  const std::optional<std::uint64_t> update = runner_.update();
  if (!update) return runner_.check_sound();
  const std::uint32_t block = layout_.ranges[parameter].block;
  if (layout_.is_streamed(block)) return passes_.await_update(parameter, *update);
  if (!gate_.wait_for_forward(block, *update)) return runner_.check_sound();
  waited_[block] = *update;
}

void DeferredUpdates::check_waited(std::uint32_t parameter) const {
  const std::optional<std::uint64_t> update = runner_.update();
  if (!update) return;
  const std::uint32_t block = layout_.ranges[parameter].block;
  check(layout_.is_streamed(block) ? gate_.has_begun_forward(block, *update)
                                   : waited_[block] == *update,
        ErrorCode::invalid_argument,
        fmt::format("\"{}\" was written while its deferred update may have been under way: call "
                    "synchronize or wait first, then write it",
                    layout_.names[parameter]));
}

}  // namespace spillway::engine
