// A driver of CUDA that has no device behind it: libcuda.so.1 as far as cuDNN and NVRTC call it
// while they plan and compile. Loads succeed, queries find one context, and nothing can run.
#include <cstdint>

namespace {

constexpr int kSuccess = 0;
constexpr int kNoDevice = 100;      // CUDA_ERROR_NO_DEVICE
constexpr int kNotFound = 500;      // CUDA_ERROR_NOT_FOUND
constexpr int kNotPermitted = 800;  // CUDA_ERROR_NOT_PERMITTED

int handle_of(void** handle) {
  static int object = 0;
  *handle = &object;
  return kSuccess;
}

}  // namespace

#define SPILLWAY_HANDLE(name) \
  int name(void** handle) { return handle_of(handle); }
#define SPILLWAY_ACCEPTED(name) \
  int name() { return kSuccess; }
#define SPILLWAY_REFUSED(name) \
  int name() { return kNotPermitted; }

extern "C" {

// NVRTC goes on without a driver that does not start.
int cuInit(unsigned /*flags*/) { return kNoDevice; }
int cuGetExportTable(const void** table, const void* /*id*/) {
  *table = nullptr;
  return kNotFound;
}
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
int cuDeviceGetCount(int* count) {
  *count = 1;
  return kSuccess;
}
int cuDeviceGet(int* device, int /*ordinal*/) {
  *device = 0;
  return kSuccess;
}
int cuCtxGetDevice(int* device) {
  *device = 0;
  return kSuccess;
}
int cuDeviceGetAttribute(int* value, int /*attribute*/, int /*device*/) {
  *value = 1;
  return kSuccess;
}
int cuGetErrorName(int /*error*/, const char** text) {
  *text = "an error of the driver without a device";
  return kSuccess;
}
int cuGetErrorString(int error, const char** text) { return cuGetErrorName(error, text); }

SPILLWAY_HANDLE(cuCtxGetCurrent)
SPILLWAY_HANDLE(cuCtxPopCurrent)
SPILLWAY_HANDLE(cuDevicePrimaryCtxRetain)
SPILLWAY_HANDLE(cuLibraryGetKernel)
SPILLWAY_HANDLE(cuLibraryLoadData)
SPILLWAY_HANDLE(cuLibraryLoadFromFile)
SPILLWAY_HANDLE(cuModuleGetFunction)
SPILLWAY_HANDLE(cuModuleLoadData)
SPILLWAY_HANDLE(cuModuleLoadDataEx)
SPILLWAY_HANDLE(cuModuleLoadFatBinary)

SPILLWAY_ACCEPTED(cuCtxGetLimit)
SPILLWAY_ACCEPTED(cuCtxPushCurrent)
SPILLWAY_ACCEPTED(cuDevicePrimaryCtxRelease)
SPILLWAY_ACCEPTED(cuDevicePrimaryCtxReset)
SPILLWAY_ACCEPTED(cuFuncGetAttribute)
SPILLWAY_ACCEPTED(cuFuncSetAttribute)
SPILLWAY_ACCEPTED(cuKernelGetAttribute)
SPILLWAY_ACCEPTED(cuKernelSetAttribute)
SPILLWAY_ACCEPTED(cuLibraryUnload)
SPILLWAY_ACCEPTED(cuModuleGetGlobal_v2)
SPILLWAY_ACCEPTED(cuModuleUnload)
SPILLWAY_ACCEPTED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
SPILLWAY_ACCEPTED(cuOccupancyMaxPotentialClusterSize)

SPILLWAY_REFUSED(cuLaunchCooperativeKernel)
SPILLWAY_REFUSED(cuLaunchKernel)
SPILLWAY_REFUSED(cuLaunchKernelEx)
SPILLWAY_REFUSED(cuLinkAddData)
SPILLWAY_REFUSED(cuLinkAddData_v2)
SPILLWAY_REFUSED(cuLinkAddFile_v2)
SPILLWAY_REFUSED(cuLinkComplete)
SPILLWAY_REFUSED(cuLinkCreate)
SPILLWAY_REFUSED(cuLinkCreate_v2)
SPILLWAY_REFUSED(cuLinkDestroy)
SPILLWAY_REFUSED(cuMemcpyDtoH_v2)
SPILLWAY_REFUSED(cuStreamGetCtx)
SPILLWAY_REFUSED(cuStreamSynchronize)
SPILLWAY_REFUSED(cuTensorMapEncodeTiled)

}  // extern "C"
