#include "offload/cuda/detail/pinned_memory.hpp"

#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <thread>
#include <vector>

#include "runtime/base/log.hpp"
#include "runtime/base/memory_budget.hpp"
#include "runtime/base/units.hpp"

namespace spillway::offload::cuda {
namespace {

/// From here on a buffer is worth reading the system's limits and several threads.
constexpr std::size_t kLargeBytes = std::size_t{64} << 20;
/// Zeroing pages is bound by memory, which few threads saturate.
constexpr std::size_t kTouchThreads = 8;

/// The driver registers whole pages.
std::size_t whole_pages(std::size_t size) {
  return round_up(std::max<std::size_t>(size, 1), kPageBytes);
}

/// Advice: pages come from `node` while it has some. Refused in many containers.
void prefer_node(std::byte* address, std::size_t size, NodeIndex node) {
  constexpr std::size_t kBits = sizeof(unsigned long) * CHAR_BIT;
  std::array<unsigned long, 16> mask{};
  if (node.value() >= mask.size() * kBits) return;
  mask[node.value() / kBits] = 1UL << (node.value() % kBits);
  // The kernel reads one bit less than it is told of.
  if (::syscall(SYS_mbind, address, size, MPOL_PREFERRED, mask.data(), mask.size() * kBits + 1,
                0U) != 0) {
    log_debug("pinned memory stays where the kernel puts it: mbind: {}", std::strerror(errno));
  }
}

void touch_range(std::byte* first, std::size_t size) {
  volatile std::byte* const pages = first;
  for (std::size_t offset = 0; offset < size; offset += kPageBytes) pages[offset] = std::byte{0};
}

/// Takes every page now, so that registering them is short and a step meets no page fault.
void touch(std::byte* address, std::size_t size) {
  const std::size_t threads =
      size < kLargeBytes
          ? 1
          : std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, kTouchThreads);
  const std::size_t part = round_up((size + threads - 1) / threads, kLargeBytes / kTouchThreads);
  std::vector<std::thread> helpers;
  for (std::size_t first = part; first < size; first += part) {
    helpers.emplace_back(touch_range, address + first, std::min(part, size - first));
  }
  touch_range(address, std::min(part, size));
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace

PinnedResult map_pinned(CudaApi& api, const detail::PageRequest& request,
                        std::optional<NodeIndex> node) {
  const std::size_t size = request.size;
  // Touching more than there is ends the process, with no word about why.
  if (size >= kLargeBytes && Bytes{size} > read_memory_budget().available()) {
    return {.address = nullptr, .reason = "less memory than that is available", .native = ENOMEM};
  }
  std::byte* const address = detail::map_pages(request);
  if (address == nullptr) {
    const int error = errno;
    return {.address = nullptr,
            .reason = std::string("mmap: ") + std::strerror(error),
            .native = error};
  }
  const std::size_t mapped = whole_pages(size);
  if (node.has_value()) prefer_node(address, mapped, *node);
  touch(address, mapped);
  const Status status = api.register_host(address, mapped);
  if (status == kSuccess) return {.address = address, .reason = {}, .native = kSuccess};
  detail::unmap_pages(address, size);
  return {
      .address = nullptr, .reason = "cudaHostRegister: " + api.describe(status), .native = status};
}

void unmap_pinned(CudaApi& api, std::byte* address, std::size_t size) noexcept {
  log_cuda(api, api.unregister_host(address), "unregistering pinned memory");
  detail::unmap_pages(address, size);
}

std::string pinned_remedy() {
  const MemoryBudget budget = read_memory_budget();
  const std::string lockable = budget.lockable.has_value()
                                   ? fmt::format("limited to {}", format_bytes(*budget.lockable))
                                   : "not limited";
  return fmt::format(
      "this process may use {}, and locked memory is {}; lower --host-memory, raise "
      "the cgroup's limit, or raise the other with `ulimit -l unlimited` "
      "(containers: --ulimit memlock=-1)",
      budget.describe(), lockable);
}

}  // namespace spillway::offload::cuda
