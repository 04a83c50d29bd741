// CudaApi on CUDA's runtime: the only file of offload that includes CUDA's headers.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>

#include "offload/cuda/detail/cuda_api.hpp"

namespace spillway::offload::cuda {
namespace {

static_assert(cudaSuccess == kSuccess);
static_assert(cudaErrorMemoryAllocation == kOutOfMemory);
static_assert(cudaErrorCudartUnloading == kRuntimeUnloading);
static_assert(cudaErrorInsufficientDriver == kInsufficientDriver);
static_assert(cudaErrorNoDevice == kNoDevice);
static_assert(cudaErrorNotReady == kNotReady);
static_assert(cudaErrorStreamCaptureUnsupported == kFirstOfCapture);
static_assert(cudaErrorStreamCaptureWrongThread == kLastOfCapture);

Status cleared(cudaError_t status) {
  if (status != cudaSuccess) static_cast<void>(::cudaGetLastError());
  return status;
}

cudaStream_t stream_of(void* handle) { return static_cast<cudaStream_t>(handle); }
cudaEvent_t event_of(void* handle) { return static_cast<cudaEvent_t>(handle); }

Status read_attribute(int& value, cudaDeviceAttr attribute, int device) {
  return cleared(::cudaDeviceGetAttribute(&value, attribute, device));
}

/// Finds a function of the driver that the runtime has opened, of CUDA 12 or newer. Its status is a
/// CUresult, whose values are those of cudaError_t.
template <class Function>
Status find_in_driver(const char* name, Function*& function) {
  constexpr unsigned kVersion = 12000;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult outcome{};
  const Status status = cleared(
      ::cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &outcome));
  if (status != kSuccess) return status;
  function = reinterpret_cast<Function*>(found);
  return found != nullptr ? kSuccess : cudaErrorSymbolNotFound;
}

class CudaRuntime final : public CudaApi {
 public:
  std::string describe(Status status) override {
    const auto error = static_cast<cudaError_t>(status);
    return fmt::format("{}: {}", ::cudaGetErrorName(error), ::cudaGetErrorString(error));
  }

  Status device_count(int& count) override { return cleared(::cudaGetDeviceCount(&count)); }

  void versions(int& driver, int& runtime) override {
    if (cleared(::cudaDriverGetVersion(&driver)) != kSuccess) driver = 0;
    if (cleared(::cudaRuntimeGetVersion(&runtime)) != kSuccess) runtime = 0;
  }

  Status set_device(int device) override { return cleared(::cudaSetDevice(device)); }
  Status current_device(int& device) override { return cleared(::cudaGetDevice(&device)); }

  Status current_context(ContextHandle& context) override {
    int (*function)(void**) = nullptr;
    const Status status = find_in_driver("cuCtxGetCurrent", function);
    return status != kSuccess ? status : function(&context);
  }
  Status set_context(ContextHandle context) override {
    int (*function)(void*) = nullptr;
    const Status status = find_in_driver("cuCtxSetCurrent", function);
    return status != kSuccess ? status : function(context);
  }
  Status relax_captures() override {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    return cleared(::cudaThreadExchangeStreamCaptureMode(&mode));
  }

  Status properties(int device, CudaDevice& found) override {
    cudaDeviceProp properties{};
    if (const Status status = cleared(::cudaGetDeviceProperties(&properties, device))) {
      return status;
    }
    std::array<char, 32> bus_id{};
    if (const Status status = cleared(
            ::cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), device))) {
      return status;
    }
    found.name = static_cast<const char*>(properties.name);
    found.pci_bus_id = bus_id.data();
    found.total_memory = Bytes{properties.totalGlobalMem};
    found.l2_cache = Bytes{static_cast<std::uint64_t>(properties.l2CacheSize)};
    found.compute_major = properties.major;
    found.compute_minor = properties.minor;
    found.multiprocessors = properties.multiProcessorCount;
    found.integrated = properties.integrated != 0;
    int node = -1;  // also where the driver does not know the attribute
    if (read_attribute(node, cudaDevAttrHostNumaId, device) == kSuccess && node >= 0) {
      found.numa_node = NodeIndex{static_cast<std::uint32_t>(node)};
    }
    return kSuccess;
  }

  Status free_memory(Bytes& free) override {
    std::size_t available = 0;
    std::size_t total = 0;
    const Status status = cleared(::cudaMemGetInfo(&available, &total));
    free = Bytes{available};
    return status;
  }

  Status allocate(void*& address, std::size_t size) override {
    return cleared(::cudaMalloc(&address, size));
  }
  Status deallocate(void* address) override { return cleared(::cudaFree(address)); }
  Status device_of(const void* address, int& device) override {
    cudaPointerAttributes found{};
    const Status status = cleared(::cudaPointerGetAttributes(&found, address));
    device = status == kSuccess && found.type == cudaMemoryTypeDevice ? found.device : -1;
    return status;
  }
  Status register_host(void* address, std::size_t size) override {
    return cleared(::cudaHostRegister(address, size, cudaHostRegisterDefault));
  }
  Status unregister_host(void* address) override { return cleared(::cudaHostUnregister(address)); }

  Status create_stream(StreamHandle& stream, Urgency urgency) override {
    int last = 0;
    int first = 0;  // the lower number
    const Status known = cleared(::cudaDeviceGetStreamPriorityRange(&last, &first));
    if (known != kSuccess) return known;
    cudaStream_t created = nullptr;
    const Status status = cleared(::cudaStreamCreateWithPriority(
        &created, cudaStreamNonBlocking, urgency == Urgency::first ? first : last));
    stream = created;
    return status;
  }
  Status destroy_stream(StreamHandle stream) override {
    return cleared(::cudaStreamDestroy(stream_of(stream)));
  }
  Status synchronize(StreamHandle stream) override {
    return cleared(::cudaStreamSynchronize(stream_of(stream)));
  }
  Status wait(StreamHandle stream, EventHandle event) override {
    return cleared(::cudaStreamWaitEvent(stream_of(stream), event_of(event), 0));
  }
  Status is_captured(StreamHandle stream, bool& captured) override {
    cudaStreamCaptureStatus found = cudaStreamCaptureStatusNone;
    const Status status = cleared(::cudaStreamIsCapturing(stream_of(stream), &found));
    captured = found != cudaStreamCaptureStatusNone;
    return status;
  }
  Status copy(void* target, const void* source, std::size_t size, CopyDirection direction,
              StreamHandle stream) override {
    const cudaMemcpyKind kind =
        direction == CopyDirection::to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
    return cleared(::cudaMemcpyAsync(target, source, size, kind, stream_of(stream)));
  }
  Status call_host(StreamHandle stream, void (*function)(void*), void* argument) override {
    return cleared(::cudaLaunchHostFunc(stream_of(stream), function, argument));
  }

  Status create_event(EventHandle& event) override {
    cudaEvent_t created = nullptr;
    const Status status = cleared(::cudaEventCreateWithFlags(&created, cudaEventDisableTiming));
    event = created;
    return status;
  }
  Status destroy_event(EventHandle event) override {
    return cleared(::cudaEventDestroy(event_of(event)));
  }
  Status record(EventHandle event, StreamHandle stream) override {
    return cleared(::cudaEventRecord(event_of(event), stream_of(stream)));
  }
  Status query(EventHandle event) override { return cleared(::cudaEventQuery(event_of(event))); }
};

}  // namespace

std::unique_ptr<CudaApi> make_cuda_api() { return std::make_unique<CudaRuntime>(); }

}  // namespace spillway::offload::cuda
