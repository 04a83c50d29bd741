// Ranks on GPUs, for tests of DeviceCommunicator: a rank's device, and data that goes there and
// comes back.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include "comm/device_communicator.hpp"
#include "comm/threads/thread_group.hpp"
#include "offload/cuda/cuda_backend.hpp"
#include "offload/memory.hpp"
#include "runtime/base/cuda_library_directories.hpp"
#include "tests/comm/values.hpp"

namespace spillway::comm {

/// A rank's device, in the rank's own thread, which is alone in giving out its memory.
class RankDevice {
 public:
  RankDevice() = default;

  /// Memory of as many bytes, undefined.
  DeviceTarget room(std::size_t size) {
    const std::size_t first = used_;
    used_ += (size + 255) / 256 * 256;
    EXPECT_LE(used_, device_.size().value());
    const auto span = device_.device().subspan(first, size);
    return {span.address(), size};
  }
  DeviceTarget put(const Buffer& data) {
    const DeviceTarget target = room(data.size());
    const auto staged = staging(target);
    std::ranges::copy(data, staged.begin());
    stream_->upload(span_of(target), staged);
    return target;
  }
  /// What the memory holds; nobody else uses it.
  Buffer get(DeviceTarget target) {
    const auto staged = staging(target);
    stream_->download(staged, span_of(target));
    stream_->synchronize();
    return {staged.begin(), staged.end()};
  }
  /// Takes back all that was given out.
  void clear() {
    stream_->synchronize();
    used_ = 0;
  }
  /// Whether what is on the stream ends within a few seconds.
  [[nodiscard]] bool ends() {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(3);
    const std::unique_ptr<offload::Event> event = backend_->make_event();
    stream_->record(*event);
    while (!event->done() && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    return event->done();
  }
  [[nodiscard]] void* stream() const { return stream_->native(); }

 private:
  static constexpr Bytes kSize = 2_MiB;

  static offload::DeviceSpan<std::byte> span_of(DeviceTarget target) {
    return {target.address, target.size};
  }
  std::span<std::byte> staging(DeviceTarget target) {
    const auto first = static_cast<std::size_t>(target.address - device_.device().address());
    return pinned_.host().subspan(first, target.size);
  }

  std::unique_ptr<offload::DeviceBackend> backend_ =
      offload::make_cuda_backend({.device_capacity = kSize, .pinned_capacity = kSize});
  offload::DeviceMemory device_{*backend_, kSize};
  offload::PinnedMemory pinned_{*backend_, kSize};
  std::unique_ptr<offload::Stream> stream_ = backend_->make_stream("net");
  std::size_t used_ = 0;
};

/// What a rank's body has.
struct DeviceRank {
  Communicator& host;
  RankDevice& device;
  DeviceCommunicator& self;

  [[nodiscard]] std::uint32_t rank() const { return host.rank().value(); }
  [[nodiscard]] std::uint32_t ranks() const { return host.ranks(); }
  [[nodiscard]] void* stream() const { return device.stream(); }
};

inline DeviceCommunicatorOptions device_options(std::uint32_t timeout_ms = 20'000,
                                                std::size_t depth = 8) {
  return {
      .depth = depth, .timeout_ms = timeout_ms, .library_directories = cuda_library_directories()};
}

/// Runs a body once per rank, on a thread of its own.
inline void run_ranks(std::uint32_t ranks, const std::function<void(DeviceRank&)>& body) {
  ThreadGroup(ranks, {.communicator = {.timeout_ms = 60'000}}).run([&](Communicator& host) {
    RankDevice device;
    DeviceCommunicator self(host, device_options());
    DeviceRank rank{host, device, self};
    body(rank);
    self.wait();
  });
}

}  // namespace spillway::comm
