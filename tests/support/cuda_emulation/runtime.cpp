// CUDA's runtime by its documentation, on the emulated device.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/support/cuda_emulation/device.hpp"
#include "tests/support/cuda_emulation/grid.hpp"
#include "tests/support/cuda_emulation/include/cuda_runtime.h"

using cuda_emulation::current_device;
using cuda_emulation::Device;
using cuda_emulation::fault;
using cuda_emulation::Mark;
using cuda_emulation::Operation;
using cuda_emulation::start_device;

namespace {

constexpr int kVersion = 13000;
constexpr std::uint64_t kMostBlocks = (std::uint64_t{1} << 31) - 1;

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t report(cudaError_t status) {
  if (status != cudaSuccess && status != cudaErrorNotReady) last_error = status;
  return status;
}

/// What `call` says with the device locked, unless the device is broken.
template <class Call>
cudaError_t on_device(Call call) {
  const Device::Lock device;
  return report(device->broken != cudaSuccess ? device->broken : call(*device.operator->()));
}

/// As `on_device`, of a call that is forbidden while another thread captures a graph.
template <class Call>
cudaError_t outside_captures(Call call) {
  return on_device([&](Device& device) {
    return cuda_emulation::may_disturb_captures() || !device.captures()
               ? call(device)
               : cudaErrorStreamCaptureUnsupported;
  });
}

/// As `on_device`, with a stream that there is. The product puts no work on the default stream.
template <class Call>
cudaError_t on_stream(cudaStream_t stream, Call call) {
  return on_device([&](Device& device) {
    if (stream == nullptr) fault("the default stream, for which all others wait, is used");
    return device.has(stream) ? call(device) : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t check_device(int device) {
  return device >= 0 && device < Device::Lock()->devices ? cudaSuccess : cudaErrorInvalidDevice;
}

/// The memory is that of the stream's device.
void expect_device(const Device& device, const CUstream_st& stream, const void* address,
                   std::size_t size, const char* what) {
  if (device.memory.device_of(address, size) == stream.device) return;
  fault("%s: %zu bytes at %p lie in no allocation of device %d", what, size, address,
        stream.device);
}

void expect_pinned(const Device& device, const void* address, std::size_t size) {
  if (device.memory.pinned(address, size)) return;
  fault("an asynchronous copy of %zu bytes at %p, which are not pinned as a whole", size, address);
}

void check_copy(const Device& device, const CUstream_st& stream, void* target, const void* source,
                std::size_t size, cudaMemcpyKind kind) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (to_device) {
    expect_device(device, stream, target, size, "the target of a copy");
  } else {
    expect_pinned(device, target, size);
  }
  if (from_device) {
    expect_device(device, stream, source, size, "the source of a copy");
  } else {
    expect_pinned(device, source, size);
  }
}

}  // namespace

namespace cuda_emulation {

cudaError_t enqueue_kernel(const KernelLaunch& launch, std::function<void()> thread) {
  Device::Lock()->kernel_names[launch.kernel] = launch.name;
  return on_stream(launch.stream, [&](Device& device) {
    if (launch.stream->device != current_device()) return cudaErrorInvalidResourceHandle;
    if (launch.blocks == 0 || launch.blocks > kMostBlocks || launch.threads == 0 ||
        launch.threads > kMostThreads) {
      return cudaErrorInvalidConfiguration;
    }
    const auto allowed = device.shared_memory_allowed.find(launch.kernel);
    const std::size_t most = allowed == device.shared_memory_allowed.end()
                                 ? kSharedMemory
                                 : std::max(kSharedMemory, allowed->second);
    if (launch.shared_bytes > most) return cudaErrorInvalidValue;
    const std::uint64_t at_ends = 2 * device.blocks_at_ends;
    const GridSize size{.blocks = launch.blocks,
                        .run = at_ends == 0 ? launch.blocks : std::min(launch.blocks, at_ends),
                        .threads = static_cast<unsigned>(launch.threads),
                        .shared_bytes = launch.shared_bytes,
                        .flushes_denormals = launch.flushes_denormals};
    device.enqueue(*launch.stream, {.work = [&device, size, thread = std::move(thread)] {
      ++device.statistics.kernels;
      device.statistics.blocks += size.run;
      run_grid(size, device.random(), thread);
    }});
    return cudaSuccess;
  });
}

cudaError_t allow_shared_memory(const void* kernel, cudaFuncAttribute attribute, int bytes) {
  return on_device([&](Device& device) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || bytes < 0 ||
        static_cast<std::size_t>(bytes) > kMostSharedMemory) {
      return cudaErrorInvalidValue;
    }
    device.shared_memory_allowed[kernel] = static_cast<std::size_t>(bytes);
    return cudaSuccess;
  });
}

}  // namespace cuda_emulation

extern "C" {

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorCudartUnloading: return "cudaErrorCudartUnloading";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorInvalidDeviceFunction: return "cudaErrorInvalidDeviceFunction";
    case cudaErrorSymbolNotFound: return "cudaErrorSymbolNotFound";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureWrongThread: return "cudaErrorStreamCaptureWrongThread";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorHostMemoryAlreadyRegistered: return "cudaErrorHostMemoryAlreadyRegistered";
    case cudaErrorHostMemoryNotRegistered: return "cudaErrorHostMemoryNotRegistered";
  }
  return "cudaErrorUnknown";
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }
cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = Device::Lock()->broken;  // what broke the device stays
  return error;
}

// --- the device

cudaError_t cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = Device::Lock()->devices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  const cudaError_t status = check_device(device);
  if (status == cudaSuccess) start_device(device);
  return report(status);
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}
cudaError_t cudaFuncGetName(const char** name, const void* kernel) {
  const Device::Lock device;
  const auto known = device->kernel_names.find(kernel);
  if (known == device->kernel_names.end()) return report(cudaErrorInvalidDeviceFunction);
  *name = known->second;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {.name = "Emulated CUDA device",
                 .totalGlobalMem = cuda_emulation::Memory::kTotal,
                 .major = 9,
                 .minor = 0,
                 .multiProcessorCount = 1,
                 .l2CacheSize = 1 << 20,
                 .integrated = Device::Lock()->integrated ? 1 : 0};
  return report(check_device(device));
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  std::snprintf(text, static_cast<std::size_t>(size), "0000:%02x:00.0",
                static_cast<unsigned>(device));
  return report(check_device(device));
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  const bool shared = attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin;
  *value = shared ? static_cast<int>(cuda_emulation::kMostSharedMemory) : 0;
  return report(check_device(device));
}

// --- memory

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return on_device([&](Device& device) {
    *total = cuda_emulation::Memory::kTotal;
    *free = *total - device.memory.used();
    return cudaSuccess;
  });
}
cudaError_t cudaMalloc(void** address, std::size_t size) {
  return outside_captures([&](Device& device) {
    start_device(current_device());
    *address = size > 0 ? device.memory.allocate(size) : nullptr;
    return size == 0 || *address != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
  });
}
cudaError_t cudaFree(void* address) {
  return on_device([&](Device& device) {
    if (address == nullptr) return cudaSuccess;
    // It waits for the whole device.
    device.finish_all(std::max(device.memory.device_of(address, 0), 0));
    return device.memory.free(address) ? cudaSuccess : cudaErrorInvalidValue;
  });
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  return on_device([&](Device& device) {
    const int holder = device.memory.device_of(address, 1);
    attributes->type = holder >= 0                        ? cudaMemoryTypeDevice
                       : device.memory.pinned(address, 1) ? cudaMemoryTypeHost
                                                          : cudaMemoryTypeUnregistered;
    attributes->device = holder >= 0 ? holder : -2;
    return cudaSuccess;
  });
}
cudaError_t cudaHostRegister(void* address, std::size_t size, unsigned flags) {
  return outside_captures([&](Device& device) {
    return flags == cudaHostRegisterDefault ? device.memory.pin(address, size)
                                            : cudaErrorInvalidValue;
  });
}
cudaError_t cudaHostUnregister(void* address) {
  return on_device([&](Device& device) {
    std::size_t size = 0;
    if (!device.memory.unpin(address, size)) return cudaErrorHostMemoryNotRegistered;
    if (device.needs(address, size)) {
      fault("memory at %p is unregistered while a copy of it has yet to run", address);
    }
    return cudaSuccess;
  });
}
cudaError_t cudaMemcpyAsync(void* target, const void* source, std::size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return on_stream(stream, [&](Device& device) {
    if (kind == cudaMemcpyHostToHost) return cudaErrorInvalidValue;
    check_copy(device, *stream, target, source, size, kind);
    const auto* const host = kind == cudaMemcpyHostToDevice   ? source
                             : kind == cudaMemcpyDeviceToHost ? target
                                                              : nullptr;
    device.enqueue(*stream, {.work =
                                 [=, &device] {
                                   check_copy(device, *stream, target, source, size, kind);
                                   std::memcpy(target, source, size);
                                   ++device.statistics.copies;
                                 },
                             .host = host,
                             .host_size = size});
    return cudaSuccess;
  });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  return on_stream(stream, [&](Device& device) {
    device.enqueue(*stream, {.work = [=, &device] {
      function(argument);
      ++device.statistics.host_functions;
    }});
    return cudaSuccess;
  });
}
cudaError_t cudaMemsetAsync(void* target, int value, std::size_t size, cudaStream_t stream) {
  return on_stream(stream, [&](Device& device) {
    expect_device(device, *stream, target, size, "a memset");
    device.enqueue(*stream, {.work = [=, &device] {
      expect_device(device, *stream, target, size, "a memset");
      std::memset(target, value, size);
    }});
    return cudaSuccess;
  });
}

// --- streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return on_device([&](Device& device) {
    if (flags != cudaStreamNonBlocking) return cudaErrorInvalidValue;
    start_device(current_device());
    *stream = device.create_stream();
    return cudaSuccess;
  });
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return on_stream(stream, [&](Device& device) {
    device.destroy_stream(stream);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return on_stream(stream, [&](Device& device) {
    device.finish(*stream);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return on_stream(stream, [&](Device&) {
    return stream->operations.empty() ? cudaSuccess : cudaErrorNotReady;
  });
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return on_device([&](Device& device) {
    const CUstream_st* const one =
        stream != nullptr ? stream : device.default_stream(current_device());
    if (!device.has(one)) return cudaErrorInvalidResourceHandle;
    *status = one->captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return on_stream(stream, [&](Device& device) {
    if (event == nullptr || flags != 0) return cudaErrorInvalidValue;
    // The record that there is now; an event that was never recorded is no wait.
    if (event->last != nullptr) device.enqueue(*stream, {.waits = event->last});
    return cudaSuccess;
  });
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return on_device([&](Device&) {
    *event = new CUevent_st{.device = current_device(), .last = nullptr};
    return cudaSuccess;
  });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  return cudaEventCreate(event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Device::Lock device;
  delete event;
  return report(device->broken);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return on_device([&](Device& device) {
    // The null handle is the default stream of the current device.
    CUstream_st* const one = stream != nullptr ? stream : device.default_stream(current_device());
    if (!device.has(one) || one->device != event->device) return cudaErrorInvalidResourceHandle;
    device.record(*event, *one);
    return cudaSuccess;
  });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return outside_captures([&](Device& device) {
    const std::shared_ptr<Mark> mark = event->last;
    return mark == nullptr || device.query(*mark) ? cudaSuccess : cudaErrorNotReady;
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return outside_captures([&](Device& device) {
    const std::shared_ptr<Mark> mark = event->last;
    if (mark != nullptr) device.finish(*mark);
    return cudaSuccess;
  });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t last) {
  return on_device([&](Device&) {
    if (first->last == nullptr || last->last == nullptr) return cudaErrorInvalidResourceHandle;
    if (!first->last->done || !last->last->done) return cudaErrorNotReady;
    const std::chrono::duration<float, std::milli> time = last->last->when - first->last->when;
    *milliseconds = time.count();
    return cudaSuccess;
  });
}

}  // extern "C"
