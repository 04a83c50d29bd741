#include "runtime/engine/state/wide_windows.hpp"

#include <algorithm>
#include <span>

namespace spillway::engine {

void WideWindows::load(BlockIndex block, std::uint64_t at, const cpu_adam::WideState& wanted) {
  const bool moments = !wanted.m.empty();
  const std::uint64_t first = at / kLeafParameters * kLeafParameters;
  if (window_ && window_->block == block && window_->moments >= moments && at >= window_->first &&
      at < window_->first + kParameters) {
    return;
  }
  window_.reset();
  values_.resize(3 * kParameters);
  const std::span all(values_);
  cpu_adam::WideState wide{.master = all.first(kParameters), .m = {}, .v = {}};
  if (moments) {
    wide.m = all.subspan(kParameters, kParameters);
    wide.v = all.last(kParameters);
  }
  load_(block, ElementCount{first}, wide);
  window_ = {.block = block, .first = first, .moments = moments};
}

void WideWindows::read(BlockIndex block, ElementCount first, const cpu_adam::WideState& wide) {
  const std::size_t count = wide.master.size();
  for (std::size_t done = 0; done < count;) {
    const std::uint64_t at = first.value() + done;
    load(block, at, wide);
    const std::size_t skipped = at - window_->first;
    const std::size_t part = std::min(count - done, kParameters - skipped);
    const auto copy = [&](std::span<float> target, std::size_t array) {
      if (target.empty()) return;
      const auto source = std::span(values_).subspan(array * kParameters + skipped, part);
      std::ranges::copy(source, target.subspan(done).begin());
    };
    copy(wide.master, 0);
    copy(wide.m, 1);
    copy(wide.v, 2);
    done += part;
  }
}

}  // namespace spillway::engine
