#include "offload/host/host_backend.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <deque>

#include "offload/detail/account.hpp"
#include "offload/detail/page_memory.hpp"
#include "offload/host/detail/host_stream.hpp"
#include "offload/host/detail/link_throttle.hpp"
#include "offload/host/detail/stream_progress.hpp"

namespace spillway::offload {
namespace host {
namespace {

class HostBackend final : public DeviceBackend {
 public:
  explicit HostBackend(const HostBackendOptions& options)
      : device_(MemoryKind::device, options.device_capacity),
        pinned_(MemoryKind::pinned, options.pinned_capacity),
        wake_(options.wake),
        stream_depth_(options.stream_depth) {
    check(stream_depth_ > 0, ErrorCode::invalid_argument, "stream_depth is 0; use at least 1");
    if (!options.link_gigabytes_per_second.has_value()) return;
    const double rate = *options.link_gigabytes_per_second;
    // Below 1 kB/s a page takes seconds and the clock's arithmetic could overflow.
    check(rate >= 1e-6 && rate <= 1e6, ErrorCode::invalid_argument,
          fmt::format("a link of {} GB/s is not possible; use 0.000001 to 1000000", rate));
    upload_link_.emplace(rate);
    download_link_.emplace(rate);
  }

  /// Owners of memory hold a reference to this: one that is left would use it after its end.
  ~HostBackend() override {
    SPILLWAY_ASSERT(device_.usage().current == Bytes{});
    SPILLWAY_ASSERT(pinned_.usage().current == Bytes{});
  }

  HostBackend(const HostBackend&) = delete;
  HostBackend& operator=(const HostBackend&) = delete;

  [[nodiscard]] std::string_view name() const override { return "host"; }

  [[nodiscard]] std::byte* allocate(MemoryKind kind, Bytes size) override {
    detail::Account& account = account_of(kind);
    const std::uint32_t number = account.take(size);
    std::byte* const address = kind == MemoryKind::device
                                   ? detail::allocate_heap(size.value())
                                   : detail::map_pages({.size = size.value(), .number = number});
    if (address == nullptr) {
      account.refuse(size, {.reason = std::strerror(ENOMEM),
                            .remedy = "lower the limit, free memory, or raise the cgroup's or "
                                      "`ulimit -v`",
                            .native = ENOMEM});
    }
    return address;
  }

  [[nodiscard]] std::byte* map_shared(const SharedPages& pages) override {
    detail::check_pages(pages);
    static_cast<void>(pinned_.take(pages.bytes()));
    std::byte* const address = detail::map_shared_pages(pages);
    if (address == nullptr) {
      pinned_.refuse(pages.bytes(), {.reason = std::strerror(errno),
                                     .remedy = "raise vm.max_map_count or `ulimit -v`",
                                     .native = errno});
    }
    return address;
  }

  void deallocate(MemoryKind kind, std::byte* address, Bytes size) noexcept override {
    if (address == nullptr) return;
    if (kind == MemoryKind::device) {
      detail::free_heap(address, size.value());
    } else {
      detail::unmap_pages(address, size.value());
    }
    account_of(kind).give_back(size);
  }

  /// Streams are threads, and the system shares processors out among them.
  [[nodiscard]] std::unique_ptr<Stream> make_stream(std::string_view name,
                                                    Urgency /*urgency*/) override {
    StreamProgress& progress = progress_.emplace_back();
    return std::make_unique<HostStream>(
        name,
        StreamSurroundings{.progress = progress,
                           .upload_link = upload_link_.has_value() ? &*upload_link_ : nullptr,
                           .download_link = download_link_.has_value() ? &*download_link_ : nullptr,
                           .wake = wake_,
                           .depth = stream_depth_});
  }

  [[nodiscard]] std::unique_ptr<Event> make_event() override {
    return std::make_unique<HostEvent>();
  }

  [[nodiscard]] MemoryUsage usage(MemoryKind kind) const override {
    return kind == MemoryKind::device ? device_.usage() : pinned_.usage();
  }

  [[nodiscard]] Capabilities capabilities() const override { return {.wakes = wake_ != nullptr}; }

 private:
  detail::Account& account_of(MemoryKind kind) {
    return kind == MemoryKind::device ? device_ : pinned_;
  }

  detail::Account device_;
  detail::Account pinned_;
  std::optional<LinkThrottle> upload_link_;
  std::optional<LinkThrottle> download_link_;
  WakeSignal* const wake_;
  const std::size_t stream_depth_;
  // One for every stream ever made, about 200 bytes each: events may ask after their stream's end.
  std::deque<StreamProgress> progress_;
};

}  // namespace
}  // namespace host

std::unique_ptr<DeviceBackend> make_host_backend(const HostBackendOptions& options) {
  return std::make_unique<host::HostBackend>(options);
}

}  // namespace spillway::offload
