// In place of runtime/base/shared_library.cpp: the libraries that an emulated program loads are
// cuBLASLt and NCCL, whose functions are linked.
#include <cublasLt.h>
#include <nccl.h>

#include <string>

#include "runtime/base/error.hpp"
#include "runtime/base/shared_library.hpp"

namespace spillway {
namespace {

/// Returns null for a function that is not emulated.
void* emulated(std::string_view wanted) {
  const struct {
    std::string_view name;
    void* address;
  } functions[] = {
#define SPILLWAY_EMULATED(function) {#function, reinterpret_cast<void*>(&function)}
      SPILLWAY_EMULATED(cublasLtCreate),
      SPILLWAY_EMULATED(cublasLtDestroy),
      SPILLWAY_EMULATED(cublasLtGetStatusName),
      SPILLWAY_EMULATED(cublasLtGetVersion),
      SPILLWAY_EMULATED(cublasLtMatmul),
      SPILLWAY_EMULATED(cublasLtMatmulAlgoCheck),
      SPILLWAY_EMULATED(cublasLtMatmulAlgoGetHeuristic),
      SPILLWAY_EMULATED(cublasLtMatmulDescCreate),
      SPILLWAY_EMULATED(cublasLtMatmulDescDestroy),
      SPILLWAY_EMULATED(cublasLtMatmulDescSetAttribute),
      SPILLWAY_EMULATED(cublasLtMatmulPreferenceCreate),
      SPILLWAY_EMULATED(cublasLtMatmulPreferenceDestroy),
      SPILLWAY_EMULATED(cublasLtMatmulPreferenceSetAttribute),
      SPILLWAY_EMULATED(cublasLtMatrixLayoutCreate),
      SPILLWAY_EMULATED(cublasLtMatrixLayoutDestroy),
      SPILLWAY_EMULATED(ncclAllGather),
      SPILLWAY_EMULATED(ncclAllReduce),
      SPILLWAY_EMULATED(ncclBroadcast),
      SPILLWAY_EMULATED(ncclCommAbort),
      SPILLWAY_EMULATED(ncclCommDestroy),
      SPILLWAY_EMULATED(ncclCommFinalize),
      SPILLWAY_EMULATED(ncclCommGetAsyncError),
      SPILLWAY_EMULATED(ncclCommInitRankConfig),
      SPILLWAY_EMULATED(ncclGetErrorString),
      SPILLWAY_EMULATED(ncclGetLastError),
      SPILLWAY_EMULATED(ncclGetUniqueId),
      SPILLWAY_EMULATED(ncclGetVersion),
      SPILLWAY_EMULATED(ncclGroupEnd),
      SPILLWAY_EMULATED(ncclGroupStart),
      SPILLWAY_EMULATED(ncclRecv),
      SPILLWAY_EMULATED(ncclReduce),
      SPILLWAY_EMULATED(ncclReduceScatter),
      SPILLWAY_EMULATED(ncclSend),
#undef SPILLWAY_EMULATED
  };
  for (const auto& function : functions) {
    if (function.name == wanted) return function.address;
  }
  return nullptr;
}

}  // namespace

void* LibraryCandidate::address_of(const char* name) const {
  SPILLWAY_ASSERT(handle_ == nullptr);
  return emulated(name);
}

SharedLibrary::SharedLibrary(std::string_view file_name,
                             std::span<const std::filesystem::path> /*directories*/,
                             std::string_view remedy, const LibraryCheck& wanted)
    : path_(file_name) {
  check(file_name == "libcublasLt.so.13" || file_name == "libnccl.so.2", ErrorCode::not_supported,
        path_ + " is not emulated: " + std::string(remedy));
  if (!wanted) return;
  const std::string reason = wanted(LibraryCandidate(nullptr, path_));
  check(reason.empty(), ErrorCode::not_supported,
        path_ + " could not be loaded: " + std::string(remedy) + "\n  " + path_ + " " + reason);
}

void* SharedLibrary::address_of(const char* name) const {
  void* const address = emulated(name);
  check(address != nullptr, ErrorCode::not_supported,
        path_ + " has no function " + name + " that is emulated");
  return address;
}

}  // namespace spillway
