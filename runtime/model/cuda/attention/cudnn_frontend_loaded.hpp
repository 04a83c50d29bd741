// cudnn-frontend on a cuDNN that is loaded when it is first wanted. To be included by one source
// file, which defines `cudnn_frontend::cudnn_dlhandle`.
//
// The frontend finds functions by name: cuDNN's in that handle, the CUDA runtime's in a
// libcudart.so that it would open, beside the one in this program, and only if the dynamic linker
// has one. Those it needs are ours instead: its dlopen and dlsym are replaced while its header is
// read. What it asks of the current device is answered from a description where there is one.
#pragma once

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstring>

namespace spillway::model::cuda::frontend {

/// What the frontend asks the runtime about a device.
struct DeviceFacts {
  int major = 0;
  int multiprocessors = 0;
};
/// Describes the device that graphs are planned for, in place of the current one. Null: the current
/// one.
inline thread_local const DeviceFacts* described_device = nullptr;

/// Describes the device for as long as this lives.
class DescribedScope {
 public:
  explicit DescribedScope(const DeviceFacts* facts) { described_device = facts; }
  DescribedScope(const DescribedScope&) = delete;
  DescribedScope& operator=(const DescribedScope&) = delete;
  ~DescribedScope() { described_device = nullptr; }
};

inline cudaError_t get_device(int* device) {
  if (described_device == nullptr) return cudaGetDevice(device);
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t get_properties(cudaDeviceProp* properties, int device) {
  if (described_device == nullptr) return cudaGetDeviceProperties(properties, device);
  *properties = {};
  properties->major = described_device->major;
  properties->multiProcessorCount = described_device->multiprocessors;
  return cudaSuccess;
}

/// Stands for the runtime that this program is linked with. The frontend asks for those of several
/// versions and insists on finding one.
inline constexpr char kRuntimeName[] = "libcudart.so.13";
inline void* open_library(const char* name, int /*mode*/) {
  return std::strcmp(name, kRuntimeName) == 0 ? const_cast<char*>(kRuntimeName) : nullptr;
}

/// Finds, in the runtime, what attention calls, and in any other handle what it has.
inline void* find_symbol(void* library, const char* name) {
  if (library != kRuntimeName) return ::dlsym(library, name);
  struct Entry {
    const char* name;
    void* function;
  };
  const Entry entries[] = {
      {"cudaGetDevice", reinterpret_cast<void*>(&get_device)},
      {"cudaGetDeviceProperties", reinterpret_cast<void*>(&get_properties)},
      {"cudaMemcpyAsync", reinterpret_cast<void*>(&cudaMemcpyAsync)},
      {"cudaMemsetAsync", reinterpret_cast<void*>(&cudaMemsetAsync)},
      {"cudaGetErrorString", reinterpret_cast<void*>(&cudaGetErrorString)},
  };
  for (const Entry& entry : entries) {
    if (std::strcmp(entry.name, name) == 0) return entry.function;
  }
  return nullptr;
}
inline int close_library(void* /*library*/) { return 0; }

}  // namespace spillway::model::cuda::frontend

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#define dlopen(name, mode) ::spillway::model::cuda::frontend::open_library(name, mode)
#define dlsym(library, name) ::spillway::model::cuda::frontend::find_symbol(library, name)
#define dlclose(library) ::spillway::model::cuda::frontend::close_library(library)
#include <cudnn_frontend.h>
#undef dlopen
#undef dlsym
#undef dlclose
