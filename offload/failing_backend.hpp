// FailingBackend: an adaptor around any backend that makes the n-th operation of a kind fail, for
// fault tests ("fail the n-th operation until the whole succeeds").
//
// Threads: the control thread only, as every backend.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "offload/device_backend.hpp"

namespace spillway::offload {

enum class FaultKind : std::uint8_t {
  device_allocation,
  pinned_allocation,
  upload,
  download,
  task
};

/// Owns the backend that does the work. A failed allocation throws `Error{out_of_memory}` at once.
/// A failed copy or task does nothing and fails its stream with `Error{device_error}`, as the
/// wrapped backend reports a failing task: at `Event::done` and `synchronize`, or at the submission
/// itself.
class FailingBackend final : public DeviceBackend {
 public:
  explicit FailingBackend(std::unique_ptr<DeviceBackend> inner) : inner_(std::move(inner)) {}

  /// Makes the `nth` operation of `kind` from now on, counted from 1, fail once; 0: none.
  void fail(FaultKind kind, std::uint64_t nth);
  /// Number of operations of `kind` asked for so far, failed ones included.
  [[nodiscard]] std::uint64_t operations(FaultKind kind) const { return of(kind).seen; }

  [[nodiscard]] std::string_view name() const override { return inner_->name(); }
  [[nodiscard]] std::byte* allocate(MemoryKind kind, Bytes size) override;
  [[nodiscard]] std::byte* map_shared(const SharedPages& pages) override;
  void deallocate(MemoryKind kind, std::byte* address, Bytes size) noexcept override {
    inner_->deallocate(kind, address, size);
  }
  using DeviceBackend::make_stream;
  [[nodiscard]] std::unique_ptr<Stream> make_stream(std::string_view name,
                                                    Urgency urgency) override;
  [[nodiscard]] std::unique_ptr<Event> make_event() override { return inner_->make_event(); }
  [[nodiscard]] MemoryUsage usage(MemoryKind kind) const override { return inner_->usage(kind); }
  [[nodiscard]] Capabilities capabilities() const override { return inner_->capabilities(); }
  [[nodiscard]] SharedDevice* shared() override { return inner_->shared(); }

 private:
  friend class FailingStream;
  struct Counter {
    std::uint64_t seen = 0;
    std::uint64_t fails_at = 0;
  };
  /// Registers one operation; returns true if it is the one to fail.
  [[nodiscard]] bool is_due(FaultKind kind);
  [[nodiscard]] const Counter& of(FaultKind kind) const {
    return counters_[static_cast<std::size_t>(kind)];
  }

  std::unique_ptr<DeviceBackend> inner_;
  std::array<Counter, 5> counters_{};
};

}  // namespace spillway::offload
