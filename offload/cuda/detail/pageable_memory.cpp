#include "offload/cuda/detail/pageable_memory.hpp"

#include <algorithm>
#include <iterator>

#include "offload/cuda/detail/pinned_memory.hpp"
#include "runtime/base/log.hpp"

namespace spillway::offload::cuda {

PageableMemory::~PageableMemory() {
  const Lock lock(mutex_);
  if (buffer_.empty()) return;
  unmap_pinned(api_, buffer_.data(), {.size = buffer_.size(), .piece = options_.piece});
}

bool PageableMemory::start() {
  for (std::size_t size = options_.buffer; buffer_.empty() && size >= kSlots * kPageBytes;
       size /= 2) {
    const PinnedResult pinned =
        map_pinned(api_, {.pages = {.size = size}, .piece = options_.piece});
    if (pinned.address != nullptr) buffer_ = {pinned.address, size};
  }
  return !buffer_.empty();
}

bool PageableMemory::adopt(std::byte* address, std::size_t size, const std::string& reason) {
  const Lock lock(mutex_);
  const bool first = buffer_.empty();
  if (!start()) return false;
  ranges_[address] = size;
  if (first) {
    log_warning(
        "the driver pins no more host memory ({}): {} and what else it refuses stay pageable, and "
        "are copied through a pinned buffer of {}, which takes longer; {}",
        reason, format_bytes(Bytes{size}), format_bytes(Bytes{buffer_.size()}), pinned_remedy());
  }
  return true;
}

bool PageableMemory::forget(std::byte* address) noexcept {
  const Lock lock(mutex_);
  return ranges_.erase(address) == 1;
}

bool PageableMemory::holds(const std::byte* address) const {
  const Lock lock(mutex_);
  const auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return false;
  const auto& [first, size] = *std::prev(after);
  return address < first + size;
}

std::span<std::byte> PageableMemory::take_slot() {
  const Lock lock(mutex_);
  const auto free = std::ranges::find(taken_, false);
  if (free == taken_.end()) return {};
  *free = true;
  const std::size_t bytes = buffer_.size() / kSlots / kPageBytes * kPageBytes;
  return buffer_.subspan(static_cast<std::size_t>(free - taken_.begin()) * bytes, bytes);
}

void PageableMemory::give_back(std::span<std::byte> slot) noexcept {
  const Lock lock(mutex_);
  taken_[static_cast<std::size_t>(slot.data() - buffer_.data()) / slot.size()] = false;
}

}  // namespace spillway::offload::cuda
