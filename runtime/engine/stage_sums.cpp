#include "runtime/engine/stage_sums.hpp"

#include <algorithm>

namespace spillway::engine {

void StageSums::add_up(std::span<double> numbers) {
  if (line_ == nullptr) return;
  const std::span all = std::span(all_).first(line_->ranks() * numbers.size());
  line_->all_gather(std::as_bytes(numbers), std::as_writable_bytes(all)).wait();
  std::ranges::fill(numbers, 0.0);
  for (std::size_t i = 0; i < all.size(); ++i) numbers[i % numbers.size()] += all[i];
}

}  // namespace spillway::engine
