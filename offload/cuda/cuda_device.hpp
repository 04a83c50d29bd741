// What there is to know about an NVIDIA GPU before a backend is made on it. Needs no CUDA headers,
// and answers in every build.
//
// Threads: any; `query_cuda_device` makes the device current on the calling thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/topology.hpp"
#include "runtime/base/units.hpp"

namespace spillway::offload {

struct CudaDevice {
  std::string name;  ///< "NVIDIA H100 80GB HBM3"
  std::string pci_bus_id;
  Bytes total_memory;
  Bytes free_memory;  ///< with this process's CUDA context in place
  Bytes l2_cache;
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  int driver_version = 0;   ///< of CUDA, as the driver says: 13000 is 13.0
  int runtime_version = 0;  ///< of CUDA, as linked
  bool integrated = false;  ///< its memory is the host's
  /// The nearest host memory node; absent where the system does not say.
  std::optional<NodeIndex> numa_node;
};

/// Returns nothing if a backend can be made on `device`; else what is missing, in words for a user:
/// no CUDA in this build, no driver, a driver too old, no device, a device too old.
[[nodiscard]] std::string cuda_unavailable_reason(int device = 0);

/// Returns how many GPUs the driver shows this process (CUDA_VISIBLE_DEVICES); 0 without CUDA.
[[nodiscard]] int count_cuda_devices();

/// Throws `Error{not_supported}` with `cuda_unavailable_reason`, `Error{device_error}` if the
/// device does not answer. Starts CUDA on the device, which takes about half a GiB of its memory.
[[nodiscard]] CudaDevice query_cuda_device(int device = 0);

}  // namespace spillway::offload
