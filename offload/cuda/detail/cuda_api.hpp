// CudaApi: the calls of CUDA's runtime that the backend makes, and no others, behind one interface.
// So the backend compiles and is tested without CUDA, and a test counts what it calls.
//
// Threads: as CUDA's runtime: any, and the current device is each thread's own.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "offload/cuda/cuda_device.hpp"
#include "offload/device_backend.hpp"
#include "runtime/base/source_location.hpp"

namespace spillway::offload::cuda {

/// A cudaError_t. 0 is success; every other one is cleared from the thread's last error, because
/// the caller has it: a kernel launched later is not blamed for it.
using Status = int;

/// These are the statuses that the backend tells apart, with the values of cudaError_t.
inline constexpr Status kSuccess = 0;
inline constexpr Status kOutOfMemory = 2;
inline constexpr Status kRuntimeUnloading = 4;
inline constexpr Status kInsufficientDriver = 35;
inline constexpr Status kNoDevice = 100;
inline constexpr Status kNotReady = 600;
/// From the first to the last, what CUDA says of a graph that somebody captures meanwhile.
inline constexpr Status kFirstOfCapture = 900;
inline constexpr Status kLastOfCapture = 908;

enum class CopyDirection { to_device, to_host };

class CudaApi {
 public:
  using StreamHandle = void*;   // cudaStream_t
  using EventHandle = void*;    // cudaEvent_t
  using ContextHandle = void*;  // CUcontext

  CudaApi() = default;
  virtual ~CudaApi() = default;
  CudaApi(const CudaApi&) = delete;
  CudaApi& operator=(const CudaApi&) = delete;

  /// Returns a text such as "cudaErrorMemoryAllocation: out of memory".
  [[nodiscard]] virtual std::string describe(Status status) = 0;
  [[nodiscard]] virtual Status device_count(int& count) = 0;
  /// Gives versions only; 0 for a driver that is not there.
  virtual void versions(int& driver, int& runtime) = 0;
  /// Makes the device current on this thread and starts CUDA on it.
  [[nodiscard]] virtual Status set_device(int device) = 0;
  /// Gives the device that is current on this thread.
  [[nodiscard]] virtual Status current_device(int& device) = 0;
  /// Gives the context that is current on this thread; null where none is. Neither this nor
  /// `set_context`, which makes it current again, starts CUDA on a device.
  [[nodiscard]] virtual Status current_context(ContextHandle& context) = 0;
  [[nodiscard]] virtual Status set_context(ContextHandle context) = 0;
  /// Lets this thread call what is forbidden to others while somebody captures a graph.
  [[nodiscard]] virtual Status relax_captures() = 0;
  /// Fills everything but the free memory and the versions; starts nothing. An absent node is one
  /// that CUDA does not know.
  [[nodiscard]] virtual Status properties(int device, CudaDevice& found) = 0;
  /// Gives that of the current device.
  [[nodiscard]] virtual Status free_memory(Bytes& free) = 0;

  [[nodiscard]] virtual Status allocate(void*& address, std::size_t size) = 0;
  [[nodiscard]] virtual Status deallocate(void* address) = 0;
  /// Gives the device in whose memory `address` lies; -1 for memory of the host and for none.
  [[nodiscard]] virtual Status device_of(const void* address, int& device) = 0;
  [[nodiscard]] virtual Status register_host(void* address, std::size_t size) = 0;
  [[nodiscard]] virtual Status unregister_host(void* address) = 0;

  /// Creates a stream that does not wait for the default stream, nor that one for it.
  [[nodiscard]] virtual Status create_stream(StreamHandle& stream, Urgency urgency) = 0;
  [[nodiscard]] virtual Status destroy_stream(StreamHandle stream) = 0;
  [[nodiscard]] virtual Status synchronize(StreamHandle stream) = 0;
  [[nodiscard]] virtual Status wait(StreamHandle stream, EventHandle event) = 0;
  /// Determines whether work put on the stream goes into a graph, and not to the device.
  [[nodiscard]] virtual Status is_captured(StreamHandle stream, bool& captured) = 0;
  [[nodiscard]] virtual Status copy(void* target, const void* source, std::size_t size,
                                    CopyDirection direction, StreamHandle stream) = 0;

  /// Calls `function` on a thread of the driver, in the stream's order. It calls nothing of CUDA's.
  [[nodiscard]] virtual Status call_host(StreamHandle stream, void (*function)(void*),
                                         void* argument) = 0;

  /// Creates one without timing, which would slow each recording.
  [[nodiscard]] virtual Status create_event(EventHandle& event) = 0;
  [[nodiscard]] virtual Status destroy_event(EventHandle event) = 0;
  [[nodiscard]] virtual Status record(EventHandle event, StreamHandle stream) = 0;
  [[nodiscard]] virtual Status query(EventHandle event) = 0;

  /// Notes that `status` is logged, and returns whether it was the last one that was.
  [[nodiscard]] bool was_logged(Status status) noexcept {
    return logged_.exchange(status) == status;
  }

 private:
  std::atomic<Status> logged_{kSuccess};
};

/// Returns CUDA's runtime; null in a build without CUDA.
[[nodiscard]] std::unique_ptr<CudaApi> make_cuda_api();

/// Throws `Error{device_error}` that names `action` ("upload of 4.00 KiB on stream h2d") and
/// CUDA's words, unless `status` is success.
void check_cuda(CudaApi& api, Status status, std::string_view action,
                SourceLocation where = SourceLocation::current());
/// Logs it instead, for destructors: once where one follows another with the same status, as after
/// a kernel that broke the device. Silent about a runtime that ends with the process.
void log_cuda(CudaApi& api, Status status, std::string_view action) noexcept;

/// Do for any api what `cuda_unavailable_reason` and `query_cuda_device` do; null: a build without
/// CUDA.
[[nodiscard]] std::string unavailable_reason(CudaApi* api, int device);
[[nodiscard]] CudaDevice query_device(CudaApi& api, int device);

}  // namespace spillway::offload::cuda
