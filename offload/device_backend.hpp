// DeviceBackend: the contract between Spillway and a device, in four nouns: device memory, pinned
// host memory, stream, event. Backends: `offload/host` (a heap "device") and `offload/cuda`.
// One contract suite, tests/offload/device_backend_contract.hpp, runs over every backend.
//
// Threads: all calls come from the control thread, but for those of SharedDevice. Work submitted to
// a stream runs in stream order, concurrently with other streams and with the control thread. A
// backend that has a SharedDevice takes calls of different streams from several threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "offload/device_span.hpp"
#include "offload/shared_pages.hpp"
#include "runtime/base/inline_task.hpp"
#include "runtime/base/units.hpp"

namespace spillway::offload {

enum class MemoryKind { device, pinned };

/// A backend's use of one kind of memory.
struct MemoryUsage {
  Bytes current;
  Bytes high_water;
  Bytes capacity;
};

/// A point in a stream's order that others can wait for. Reusable: recording again replaces it.
class Event {
 public:
  virtual ~Event() = default;
  /// Returns true once everything before the last `record` is done; true if never recorded. Does
  /// not block. Throws what that work failed with.
  [[nodiscard]] virtual bool done() = 0;
  /// Returns the device library's own event; null on the host.
  [[nodiscard]] virtual void* native() const { return nullptr; }
};

/// Whose work a device begins first where it can choose.
enum class Urgency : std::uint8_t {
  usual,
  first,  ///< ahead of what streams of usual urgency hold
};

/// A serial queue of copies and tasks.
class Stream {
 public:
  virtual ~Stream() = default;

  /// Copies in stream order. `target` and `source` stay valid until then; the host side is pinned.
  virtual void upload(DeviceSpan<std::byte> target, std::span<const std::byte> source) = 0;
  virtual void download(std::span<std::byte> target, DeviceSpan<const std::byte> source) = 0;
  /// Runs `task` in stream order. On the host backend it runs on the stream's worker; on CUDA it
  /// runs at once on the caller, and the kernels that it launches are ordered.
  virtual void submit(InlineTask task) = 0;
  virtual void record(Event& event) = 0;
  /// Delays later work of this stream until `event`'s last recording is done.
  virtual void wait(Event& event) = 0;
  /// Blocks until the stream is empty; throws the first failure of its work. Not on the step path.
  virtual void synchronize() = 0;
  /// Returns the device library's own stream, for those that launch kernels on it; null on the
  /// host.
  [[nodiscard]] virtual void* native() const { return nullptr; }
};

/// What a backend can do beyond the contract.
struct Capabilities {
  /// A recorded event that completes notifies the WakeSignal that the backend was made with.
  /// Without that, whoever waits for events asks again every so often.
  bool wakes = false;
};

/// Borrows a stream or an event of somebody else's, in the device library's own handle
/// (cudaStream_t, cudaEvent_t).
struct ExternalWork {
  enum class Kind : std::uint8_t {
    none,    ///< there is nothing to wait for
    stream,  ///< what the stream holds so far; null is CUDA's default stream of the device
    event,   ///< what the event was recorded for last
  };
  Kind kind = Kind::none;
  void* handle = nullptr;
};

/// What a backend has in common with other code that uses the same device. Any thread.
class SharedDevice {
 public:
  virtual ~SharedDevice() = default;
  /// Makes the device current on the calling thread, which then may use the backend's streams.
  virtual void bind_thread() = 0;
  /// Throws `Error{invalid_argument}` unless `memory` is this device's, whoever has allocated it.
  virtual void check_memory(DeviceSpan<const std::byte> memory) = 0;
  /// Records `event` behind `work`, never `none`. Does not block. No two calls record the same
  /// event at once. Throws `Error{not_supported}` for a stream that is captured into a graph.
  virtual void record_behind(const ExternalWork& work, Event& event) = 0;
};

class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Allocates `size` bytes aligned to `kPageBytes`, never rounded up in the accounting. Throws
  /// `Error{out_of_memory}` naming the limit, what was asked for and the remedy. A child made by
  /// fork() has no pinned memory, unless `show_to_children` has said otherwise.
  [[nodiscard]] virtual std::byte* allocate(MemoryKind kind, Bytes size) = 0;
  /// Returns pinned memory of `pages.bytes()` whose pages are those of a file. What is there stays.
  /// Children made by fork() share it. Throws likewise.
  [[nodiscard]] virtual std::byte* map_shared(const SharedPages& pages) = 0;
  virtual void deallocate(MemoryKind kind, std::byte* address, Bytes size) noexcept = 0;
  [[nodiscard]] std::unique_ptr<Stream> make_stream(std::string_view name) {
    return make_stream(name, Urgency::usual);
  }
  /// No urgency changes what a stream does, nor the order within it.
  [[nodiscard]] virtual std::unique_ptr<Stream> make_stream(std::string_view name,
                                                            Urgency urgency) = 0;
  [[nodiscard]] virtual std::unique_ptr<Event> make_event() = 0;
  [[nodiscard]] virtual MemoryUsage usage(MemoryKind kind) const = 0;
  [[nodiscard]] virtual Capabilities capabilities() const = 0;
  /// Returns null where nobody else can have streams or memory on the device, as on the host. Lives
  /// as long as the backend.
  [[nodiscard]] virtual SharedDevice* shared() { return nullptr; }
};

}  // namespace spillway::offload
