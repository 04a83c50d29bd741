// What the tests of operations and models run on: the host, or a device whose memory the test
// cannot read. One at a time, set by the fixture (or program) before any memory is taken.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>

#include "offload/device_backend.hpp"
#include "runtime/base/units.hpp"

namespace spillway::model {

struct TestDevice {
  std::unique_ptr<offload::DeviceBackend> backend;
  std::unique_ptr<offload::Stream> stream;  ///< of the operations, and of this memory's copies
  /// Tells what failed where nothing can be thrown. A program of tests has it fail the test.
  void (*report)(const char* what) = [](const char* what) { std::fprintf(stderr, "%s\n", what); };

  /// Null: tests run on the host, whose memory is the device's.
  static TestDevice*& current() {
    static TestDevice* device = nullptr;
    return device;
  }
};

/// Calls `body`, at the end of memory, where a device that is broken can be reported only.
template <class Body>
void report_failures(TestDevice& device, const Body& body) noexcept {
  try {
    body();
  } catch (const std::exception& error) {
    device.report(error.what());
  }
}

/// Gives memory back to where it was taken.
struct FreeTestMemory {
  offload::MemoryKind kind{};
  std::size_t size = 0;
  void operator()(std::byte* p) const noexcept {
    if (TestDevice* device = TestDevice::current(); device != nullptr) {
      report_failures(*device, [&] { device->stream->synchronize(); });
      device->backend->deallocate(kind, p, Bytes{size});
    } else {
      ::operator delete(p, std::align_val_t{kPageBytes});
    }
  }
};
/// Page-aligned bytes that stand for device memory, filled with 0xff (NaN) at first. On a device
/// they are two: the device's, which `device()` brings up to date, and the host's, which `data()`
/// does. What a test writes by one `data()` is lost at the next before a `device()`. The program
/// ends if something was written behind them.
class TestMemory {
 public:
  TestMemory() = default;
  explicit TestMemory(std::size_t size)
      : size_(size), host_(take(offload::MemoryKind::pinned, size)) {
    std::memset(host_.get(), 0xff, size + kGuard);
    TestDevice* const device = TestDevice::current();
    if (device == nullptr) return;
    device_ = take(offload::MemoryKind::device, size);
    device->stream->upload({device_.get() + size, kGuard}, {host_.get() + size, kGuard});
  }
  template <class T>
  explicit TestMemory(std::span<const T> values) : TestMemory(values.size_bytes()) {
    if (!values.empty()) std::memcpy(host_.get(), values.data(), values.size_bytes());
  }
  TestMemory(TestMemory&&) = default;
  TestMemory& operator=(TestMemory&&) = default;
  ~TestMemory() { check_guard(); }

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::byte* data() const {
    if (device_ != nullptr && handed_out_) {
      TestDevice& device = *TestDevice::current();
      device.stream->download({host_.get(), size_}, {device_.get(), size_});
      device.stream->synchronize();
    }
    touched_ = true;
    return host_.get();
  }
  [[nodiscard]] offload::DeviceSpan<std::byte> device() const {
    if (device_ == nullptr) return {host_.get(), size_};
    if (touched_ && size_ > 0) {
      TestDevice::current()->stream->upload({device_.get(), size_}, {host_.get(), size_});
    }
    touched_ = false;
    handed_out_ = size_ > 0;
    return {device_.get(), size_};
  }
  template <class T>
  [[nodiscard]] std::span<T> as() const {
    return {reinterpret_cast<T*>(data()), size_ / sizeof(T)};
  }

 private:
  using Owner = std::unique_ptr<std::byte, FreeTestMemory>;
  static constexpr std::size_t kGuard = 64;

  static Owner take(offload::MemoryKind kind, std::size_t size) {
    const std::size_t taken = size + kGuard;
    if (TestDevice* device = TestDevice::current(); device != nullptr) {
      return {device->backend->allocate(kind, Bytes{taken}), FreeTestMemory{kind, taken}};
    }
    return {static_cast<std::byte*>(::operator new(taken, std::align_val_t{kPageBytes})),
            FreeTestMemory{kind, taken}};
  }

  void check_guard() const noexcept {
    if (host_ == nullptr) return;
    std::byte* const behind = host_.get() + size_;
    if (device_ != nullptr) {
      TestDevice& device = *TestDevice::current();
      report_failures(device, [&] {
        device.stream->download({behind, kGuard}, {device_.get() + size_, kGuard});
        device.stream->synchronize();
      });
    }
    if (std::all_of(behind, behind + kGuard, [](std::byte b) { return b == std::byte{0xff}; })) {
      return;
    }
    std::fprintf(stderr, "something was written behind %zu bytes of a test's memory\n", size_);
    std::abort();
  }

  std::size_t size_ = 0;
  Owner host_, device_;
  mutable bool touched_ = true;      ///< by the test, since the device last had it
  mutable bool handed_out_ = false;  ///< the device may have written
};

}  // namespace spillway::model
