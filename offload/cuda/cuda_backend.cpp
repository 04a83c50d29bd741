#include "offload/cuda/cuda_backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "offload/cuda/detail/cuda_backend.hpp"
#include "offload/cuda/detail/cuda_stream.hpp"
#include "offload/cuda/detail/current_device.hpp"
#include "offload/cuda/detail/pageable_memory.hpp"
#include "offload/cuda/detail/pinned_memory.hpp"
#include "offload/cuda/detail/shared_device.hpp"
#include "offload/detail/account.hpp"
#include "offload/detail/page_memory.hpp"
#include "runtime/base/log.hpp"

namespace spillway::offload {
namespace cuda {
namespace {

class CudaBackend final : public DeviceBackend {
 public:
  CudaBackend(std::unique_ptr<CudaApi> api, const CudaBackendOptions& options)
      : api_(std::move(api)),
        node_(query_device(*api_, options.device).numa_node),
        bound_(options.pinned_bound),
        piece_(options.pinned_piece.value()),
        number_(options.device),
        device_(MemoryKind::device, options.device_capacity),
        pinned_(MemoryKind::pinned, options.pinned_capacity),
        pageable_(std::make_unique<PageableMemory>(
            *api_,
            PageableMemory::Options{.buffer = options.bounce_buffer.value(), .piece = piece_})) {
    SPILLWAY_ASSERT(piece_ > 0 && piece_ % kPageBytes == 0);
    const std::string warning = pinned_warning(read_memory_budget(), options.pinned_capacity);
    if (!warning.empty()) log_warning("{}", warning);
  }

  /// Owners of memory hold a reference to this: one that is left would use it after its end.
  ~CudaBackend() override {
    pageable_.reset();
    SPILLWAY_ASSERT(device_.usage().current == Bytes{});
    SPILLWAY_ASSERT(pinned_.usage().current == Bytes{});
  }

  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  [[nodiscard]] std::string_view name() const override { return "cuda"; }

  [[nodiscard]] std::byte* allocate(MemoryKind kind, Bytes size) override {
    const CurrentDevice current(*api_, number_);  // the thread may have chosen another one since
    const std::uint32_t number = account_of(kind).take(size);
    return kind == MemoryKind::device ? allocate_device(size) : allocate_pinned(size, number);
  }

  [[nodiscard]] std::byte* map_shared(const SharedPages& pages) override {
    const CurrentDevice current(*api_, number_);
    detail::check_pages(pages);
    static_cast<void>(pinned_.take(pages.bytes()));
    const PinnedResult result = pin_shared(*api_, pages, piece_);
    if (result.address == nullptr) {
      pinned_.refuse(pages.bytes(),
                     {.reason = result.reason, .remedy = pinned_remedy(), .native = result.native});
    }
    return result.address;
  }

  void deallocate(MemoryKind kind, std::byte* address, Bytes size) noexcept override {
    if (address == nullptr) return;
    if (kind == MemoryKind::device) {
      deallocate_device(address);
    } else if (pageable_->forget(address)) {
      detail::unmap_pages(address, size.value());
    } else {
      unmap_pinned(*api_, address, {.size = size.value(), .piece = piece_});
    }
    account_of(kind).give_back(size);
  }

  [[nodiscard]] std::unique_ptr<Stream> make_stream(std::string_view name,
                                                    Urgency urgency) override {
    return std::make_unique<CudaStream>(*api_, name, urgency, piece_, pageable_.get());
  }

  [[nodiscard]] std::unique_ptr<Event> make_event() override {
    return std::make_unique<CudaEvent>(*api_);
  }

  [[nodiscard]] MemoryUsage usage(MemoryKind kind) const override {
    return kind == MemoryKind::device ? device_.usage() : pinned_.usage();
  }

  [[nodiscard]] Capabilities capabilities() const override { return {.wakes = false}; }
  [[nodiscard]] SharedDevice* shared() override {
    if (shared_ == nullptr) shared_ = std::make_unique<CudaSharedDevice>(*api_, number_);
    return shared_.get();
  }

 private:
  detail::Account& account_of(MemoryKind kind) {
    return kind == MemoryKind::device ? device_ : pinned_;
  }

  std::byte* allocate_device(Bytes size) {
    const std::size_t wanted = std::max<std::size_t>(size.value(), 1);
    void* base = nullptr;
    Status status = api_->allocate(base, wanted);
    if (status == kSuccess && misalignment(base) != 0) {
      // CUDA aligns to 256 bytes, and large allocations, which are all that matter, to far more:
      // only a small one ever takes the page that this costs.
      log_cuda(*api_, api_->deallocate(base), "freeing device memory");
      status = api_->allocate(base, wanted + kPageBytes);
    }
    if (status == kOutOfMemory) {
      device_.refuse(size, {.reason = api_->describe(status),
                            .remedy = "another program may use the GPU (nvidia-smi); lower "
                                      "--device-memory",
                            .native = status});
    }
    if (status != kSuccess) {
      device_.give_back(size);
      check_cuda(*api_, status, "allocating device memory");
    }
    const std::size_t excess = misalignment(base);
    auto* const address = static_cast<std::byte*>(base) + (excess == 0 ? 0 : kPageBytes - excess);
    if (address != base) shifted_[address] = base;
    return address;
  }

  void deallocate_device(std::byte* address) noexcept {
    void* base = address;
    if (const auto entry = shifted_.find(address); entry != shifted_.end()) {
      base = entry->second;
      shifted_.erase(entry);
    }
    log_cuda(*api_, api_->deallocate(base), "freeing device memory");
  }

  std::byte* allocate_pinned(Bytes size, std::uint32_t number) {
    const PinnedResult result =
        map_pinned(*api_, {.pages = {.size = size.value(), .number = number},
                           .piece = piece_,
                           .bound = bound_,
                           .node = node_,
                           .pageable = pageable_.get()});
    if (result.address == nullptr) {
      pinned_.refuse(size,
                     {.reason = result.reason, .remedy = pinned_remedy(), .native = result.native});
    }
    return result.address;
  }

  static std::size_t misalignment(const void* address) {
    return reinterpret_cast<std::uintptr_t>(address) % kPageBytes;
  }

  const std::unique_ptr<CudaApi> api_;
  const std::optional<NodeIndex> node_;  ///< where pinned memory belongs
  const PinnedBound bound_;
  const std::size_t piece_;  ///< of pinned memory, in bytes
  const int number_;         ///< of the device
  detail::Account device_;
  detail::Account pinned_;
  std::unique_ptr<PageableMemory> pageable_;
  std::unique_ptr<CudaSharedDevice> shared_;  ///< made when it is asked for
  std::map<std::byte*, void*> shifted_;       ///< what CUDA gave, of addresses that are not that
};

}  // namespace

std::unique_ptr<DeviceBackend> make_backend(std::unique_ptr<CudaApi> api,
                                            const CudaBackendOptions& options) {
  check(api != nullptr, ErrorCode::not_supported, unavailable_reason(nullptr, options.device));
  return std::make_unique<CudaBackend>(std::move(api), options);
}

}  // namespace cuda

std::unique_ptr<DeviceBackend> make_cuda_backend(const CudaBackendOptions& options) {
  return cuda::make_backend(cuda::make_cuda_api(), options);
}

}  // namespace spillway::offload
