// The functions of cuBLASLt that we call, from a library that is loaded when it is first wanted.
#pragma once

#include <cublasLt.h>

#include <filesystem>
#include <span>
#include <string>

#include "runtime/base/shared_library.hpp"

namespace spillway::model::cuda {

inline constexpr const char* kCublasLtName = "libcublasLt.so.13";

struct CublasLt {
  /// Throws `Error{not_supported}` if the library, or one of the functions, is missing.
  explicit CublasLt(std::span<const std::filesystem::path> directories);

  SharedLibrary library;
  decltype(&cublasLtGetVersion) get_version;
  decltype(&cublasLtGetStatusName) status_name;
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulAlgoCheck) check_algorithm;
  decltype(&cublasLtMatmulDescCreate) create_description;
  decltype(&cublasLtMatmulDescDestroy) destroy_description;
  decltype(&cublasLtMatmulDescSetAttribute) set_description;
  decltype(&cublasLtMatrixLayoutCreate) create_layout;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;

  /// Throws `Error{device_error}` unless `status` is success. `what` was tried, and put on `stream`
  /// where there is one.
  void check(cublasStatus_t status, const std::string& what, cudaStream_t stream = nullptr) const;
};

}  // namespace spillway::model::cuda
