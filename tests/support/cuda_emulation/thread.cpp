// What CUDA keeps of each thread: its device, the context that is current, and what the thread may
// do while another one captures a graph.
#include <cstdint>
#include <string_view>
#include <utility>

#include "tests/support/cuda_emulation/device.hpp"

namespace cuda_emulation {
namespace {

thread_local auto capture_mode = cudaStreamCaptureModeGlobal;
/// The device whose context is current; -1: none, as in a thread that has used no device yet.
thread_local int context = -1;

// Functions of the driver.
int get_context(void** found) {
  *found = reinterpret_cast<void*>(std::intptr_t{context} + 1);
  return cudaSuccess;
}
int set_context(void* wanted) {
  context = static_cast<int>(reinterpret_cast<std::intptr_t>(wanted)) - 1;
  // Without one the runtime goes on with the device that was chosen last.
  if (context >= 0) current_device() = context;
  return cudaSuccess;
}

}  // namespace

int& current_device() {
  thread_local int device = 0;
  return device;
}

void start_device(int number) {
  context = current_device() = number;
  Device::Lock()->started.insert(number);
}

bool may_disturb_captures() { return capture_mode == cudaStreamCaptureModeRelaxed; }
bool is_started(int device) { return Device::Lock()->started.contains(device); }

}  // namespace cuda_emulation

extern "C" {

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function,
                                             unsigned /*version*/, unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* outcome) {
  const std::string_view wanted = name;
  *function = wanted == "cuCtxGetCurrent"   ? reinterpret_cast<void*>(&cuda_emulation::get_context)
              : wanted == "cuCtxSetCurrent" ? reinterpret_cast<void*>(&cuda_emulation::set_context)
                                            : nullptr;
  *outcome =
      *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, cuda_emulation::capture_mode);
  return cudaSuccess;
}

}  // extern "C"
