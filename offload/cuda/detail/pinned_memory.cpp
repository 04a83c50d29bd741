#include "offload/cuda/detail/pinned_memory.hpp"

#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include "offload/cuda/detail/pageable_memory.hpp"
#include "runtime/base/elapsed.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/units.hpp"

namespace spillway::offload::cuda {
namespace {

/// From here on a buffer is worth reading the system's limits and several threads.
constexpr std::size_t kLargeBytes = std::size_t{64} << 20;
/// Zeroing pages is bound by memory, which few threads saturate.
constexpr std::size_t kTouchThreads = 8;
/// The driver of Windows pins about as much for a process of WSL2.
constexpr Bytes kPinnedByWsl{std::uint64_t{1} << 30};

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
  std::vector<std::jthread> helpers;
  for (std::size_t first = part; first < size; first += part) {
    const std::size_t count = std::min(part, size - first);
    try {
      helpers.emplace_back(touch_range, address + first, count);
    } catch (const std::exception&) {  // the system has no thread, or no memory for one
      touch_range(address + first, count);
    }
  }
  touch_range(address, std::min(part, size));
}

void unregister_pieces(CudaApi& api, std::byte* address, std::size_t size, std::size_t piece) {
  for_each_piece(address, size, piece, [&](std::size_t first, std::size_t) {
    log_cuda(api, api.unregister_host(address + first), "unregistering pinned memory");
    return true;
  });
}

/// Registers all pieces, or none.
Status register_pieces(CudaApi& api, std::byte* address, std::size_t size, std::size_t piece) {
  Status status = kSuccess;
  for_each_piece(address, size, piece, [&](std::size_t first, std::size_t count) {
    status = api.register_host(address + first, count);
    if (status != kSuccess) unregister_pieces(api, address, first, piece);
    return status == kSuccess;
  });
  return status;
}

/// Touching more than there is ends the process, with no word about why.
bool is_there(std::size_t size, PinnedBound bound) {
  if (size < kLargeBytes) return true;
  const Bytes available = read_memory_budget().available();
  if (Bytes{size} <= available) return true;
  if (bound == PinnedBound::available) return false;
  log_warning(
      "{} of host memory are taken at the word of --host-memory, and the system says that {} are "
      "available; if they do not come, the kernel ends this process: lower --host-memory then",
      format_bytes(Bytes{size}), format_bytes(available));
  return true;
}

}  // namespace

PinnedResult map_pinned(CudaApi& api, const PinnedRequest& request) {
  const std::size_t size = request.pages.size;
  if (!is_there(size, request.bound)) {
    return {.address = nullptr, .reason = "less memory than that is available", .native = ENOMEM};
  }
  std::byte* const address = detail::map_pages(request.pages);
  if (address == nullptr) {
    const int error = errno;
    return {.address = nullptr,
            .reason = std::string("mmap: ") + std::strerror(error),
            .native = error};
  }
  const std::size_t mapped = whole_pages(size);
  if (request.node.has_value()) prefer_node(address, mapped, *request.node);
  const auto begin = std::chrono::steady_clock::now();
  touch(address, mapped);
  const double touched = seconds_since(begin);
  const Status status = register_pieces(api, address, mapped, request.piece);
  if (status == kSuccess) {
    if (size >= kLargeBytes) {
      log_info("pinned {} of host memory: {:.2f} s to touch its pages, {:.2f} s to register them",
               format_bytes(Bytes{size}), touched, seconds_since(begin) - touched);
    }
    return {.address = address, .reason = {}, .native = kSuccess};
  }
  const std::string reason = "cudaHostRegister: " + api.describe(status);
  if (request.pageable != nullptr && request.pageable->adopt(address, mapped, reason)) {
    return {.address = address, .reason = {}, .native = kSuccess};
  }
  detail::unmap_pages(address, size);
  return {.address = nullptr, .reason = reason, .native = status};
}

PinnedResult pin_shared(CudaApi& api, const SharedPages& pages, std::size_t piece) {
  std::byte* const address = detail::map_shared_pages(pages);
  if (address == nullptr) {
    const int error = errno;
    return {.address = nullptr,
            .reason = std::string("mmap: ") + std::strerror(error),
            .native = error};
  }
  const Status status = register_pieces(api, address, pages.bytes().value(), piece);
  if (status == kSuccess) return {.address = address, .reason = {}, .native = kSuccess};
  detail::unmap_pages(address, pages.bytes().value());
  return {
      .address = nullptr, .reason = "cudaHostRegister: " + api.describe(status), .native = status};
}

void unmap_pinned(CudaApi& api, std::byte* address, const PinnedExtent& extent) noexcept {
  unregister_pieces(api, address, whole_pages(extent.size), extent.piece);
  detail::unmap_pages(address, extent.size);
}

std::string pinned_warning(const MemoryBudget& memory, Bytes capacity) {
  if (!memory.wsl || capacity <= kPinnedByWsl) return {};
  return fmt::format(
      "this is WSL2, where pinned memory ends near {}, and up to {} are wanted: what the driver "
      "refuses is copied more slowly; give --host-memory {}, or use Linux without Windows",
      format_bytes(kPinnedByWsl), format_bytes(capacity), format_bytes(kPinnedByWsl));
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
