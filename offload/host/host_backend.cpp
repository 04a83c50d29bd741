#include "offload/host/host_backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>

#include "offload/host/detail/host_stream.hpp"
#include "offload/host/detail/link_throttle.hpp"
#include "offload/host/detail/page_memory.hpp"
#include "offload/host/detail/stream_progress.hpp"

namespace spillway::offload {
namespace host {
namespace {

std::string exact(Bytes bytes) {
  return fmt::format("{} ({} bytes)", format_bytes(bytes), bytes.value());
}

/// One kind of memory: its words in messages, its limit and what is in use.
class Account {
 public:
  Account(std::string_view noun, std::string_view remedy, Bytes capacity)
      : noun_(noun),
        remedy_(remedy),
        usage_{.current = {}, .high_water = {}, .capacity = capacity} {}

  void take(Bytes size) {
    const std::lock_guard lock(mutex_);
    if (size > usage_.capacity - usage_.current) {
      throw Error(ErrorCode::out_of_memory,
                  fmt::format("{} memory is full: asked for {}, {} of {} in use; {}", noun_,
                              exact(size), exact(usage_.current), exact(usage_.capacity), remedy_));
    }
    usage_.current += size;
    usage_.high_water = std::max(usage_.high_water, usage_.current);
  }

  void give_back(Bytes size) noexcept {
    const std::lock_guard lock(mutex_);
    SPILLWAY_ASSERT(size <= usage_.current);
    usage_.current -= size;
  }

  /// The system refused `size` bytes that the limit allowed.
  [[noreturn]] void refuse(Bytes size, int error_number) {
    give_back(size);
    throw Error(ErrorCode::out_of_memory,
                fmt::format("the system refused {} of {} memory ({}) with {} of {} in use; lower "
                            "the limit, free memory, or raise the cgroup's or `ulimit -v`",
                            exact(size), noun_, std::strerror(error_number), exact(usage().current),
                            exact(usage().capacity)),
                error_number);
  }

  [[nodiscard]] MemoryUsage usage() const {
    const std::lock_guard lock(mutex_);
    return usage_;
  }

 private:
  const std::string_view noun_;
  const std::string_view remedy_;
  mutable std::mutex mutex_;
  MemoryUsage usage_;  // guarded by mutex_
};

class HostBackend final : public DeviceBackend {
 public:
  explicit HostBackend(const HostBackendOptions& options)
      : device_("device", "raise --device-memory or lower the micro-batch size",
                options.device_capacity),
        pinned_("pinned host", "raise --host-memory or put optimizer state on disk with --nvme",
                options.pinned_capacity),
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
    Account& account = account_of(kind);
    account.take(size);
    std::byte* const address =
        kind == MemoryKind::device ? allocate_heap(size.value()) : map_pages(size.value());
    if (address == nullptr) account.refuse(size, ENOMEM);
    return address;
  }

  void deallocate(MemoryKind kind, std::byte* address, Bytes size) noexcept override {
    if (address == nullptr) return;
    if (kind == MemoryKind::device) {
      free_heap(address, size.value());
    } else {
      unmap_pages(address, size.value());
    }
    account_of(kind).give_back(size);
  }

  [[nodiscard]] std::unique_ptr<Stream> make_stream(std::string_view name) override {
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

 private:
  Account& account_of(MemoryKind kind) { return kind == MemoryKind::device ? device_ : pinned_; }

  Account device_;
  Account pinned_;
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
