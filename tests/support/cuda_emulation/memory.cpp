#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/support/cuda_emulation/device.hpp"
#include "tests/support/cuda_emulation/grid.hpp"

namespace cuda_emulation {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kAlignment = 256;  // CUDA's
constexpr std::size_t kPoisonBytes = std::size_t{4} << 20;
constexpr std::size_t kKeptOut = 64;  // freed allocations whose addresses nobody gets again

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// A file of 0xff: mapping it costs no memory before something is written.
int poison_file() {
  static const int file = [] {
    const int made = ::memfd_create("undefined device memory", 0);
    const std::vector<char> poison(kPoisonBytes, '\xff');
    if (made < 0 ||
        ::write(made, poison.data(), poison.size()) != static_cast<ssize_t>(poison.size())) {
      fault("no memory for what is undefined");
    }
    return made;
  }();
  return file;
}

bool within(const std::map<std::uintptr_t, std::size_t>& ranges, const void* address,
            std::size_t size) {
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  const auto after = ranges.upper_bound(first);
  if (after == ranges.begin()) return false;
  const auto& [start, length] = *std::prev(after);
  return first - start <= length && size <= length - (first - start);
}

}  // namespace

/// It ends where nothing is mapped, but for what CUDA's alignment leaves.
std::byte* Memory::allocate(std::size_t size) {
  if (size > kTotal - used()) return nullptr;
  const std::size_t inside = round_up(round_up(size, kAlignment), kPage);
  const std::size_t mapped = inside + 2 * kPage;
  void* const mapping =
      ::mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  auto* const first = static_cast<std::byte*>(mapping) + kPage;
  for (std::size_t done = 0; done < inside; done += kPoisonBytes) {
    if (::mmap(first + done, std::min(kPoisonBytes, inside - done), PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, poison_file(), 0) == MAP_FAILED) {
      fault("no memory for %zu bytes of the device", size);
    }
  }
  std::byte* const address = first + inside - round_up(size, kAlignment);
  allocations_[reinterpret_cast<std::uintptr_t>(address)] = {size, static_cast<std::byte*>(mapping),
                                                             mapped, current_device()};
  return address;
}

bool Memory::free(void* address) {
  const auto found = allocations_.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == allocations_.end()) return false;
  const auto [size, mapping, mapped, device] = found->second;
  const auto* const end = static_cast<std::byte*>(address) + size;
  const auto* const slack_end = static_cast<std::byte*>(address) + round_up(size, kAlignment);
  if (std::any_of(end, slack_end, [](std::byte b) { return b != std::byte{0xff}; })) {
    fault("something was written behind the %zu bytes of an allocation", size);
  }
  ::mmap(mapping, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
         0);
  freed_.push_back({mapping, mapped});
  if (freed_.size() > kKeptOut) {
    ::munmap(freed_.front().address, freed_.front().size);
    freed_.pop_front();
  }
  allocations_.erase(found);
  return true;
}

std::size_t Memory::used() const {
  std::size_t sum = 0;
  for (const auto& [address, allocation] : allocations_) {
    if (allocation.device == current_device()) sum += allocation.size;
  }
  return sum;
}

int Memory::device_of(const void* address, std::size_t size) const {
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  const auto after = allocations_.upper_bound(first);
  if (after == allocations_.begin()) return -1;
  const auto& [start, allocation] = *std::prev(after);
  const bool inside = first - start <= allocation.size && size <= allocation.size - (first - start);
  return inside ? allocation.device : -1;
}

cudaError_t Memory::pin(void* address, std::size_t size) {
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  if (size == 0 || first == 0) return cudaErrorInvalidValue;
  const auto after = pinned_.lower_bound(first + size);
  if (after != pinned_.begin()) {
    const auto& [start, length] = *std::prev(after);
    if (start + length > first) return cudaErrorHostMemoryAlreadyRegistered;
  }
  std::uint64_t all = size;
  for (const auto& [start, length] : pinned_) all += length;
  if (all > most_pinned) return cudaErrorMemoryAllocation;
  pinned_[first] = size;
  return cudaSuccess;
}

bool Memory::unpin(void* address, std::size_t& size) {
  const auto found = pinned_.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == pinned_.end()) return false;
  size = found->second;
  pinned_.erase(found);
  return true;
}

bool Memory::pinned(const void* address, std::size_t size) const {
  return within(pinned_, address, size);
}

}  // namespace cuda_emulation
