#include "runtime/model/cuda/gemm/cublaslt.hpp"

#include <fmt/format.h>

#include <type_traits>

#include "runtime/base/cuda/check.hpp"
#include "runtime/base/error.hpp"

namespace spillway::model::cuda {
namespace {

template <class Pointer>
void find(const SharedLibrary& library, Pointer& function, const char* name) {
  function = library.function<std::remove_pointer_t<Pointer>>(name);
}

}  // namespace

CublasLt::CublasLt(std::span<const std::filesystem::path> directories)
    : library(kCublasLtName, directories,
              "the CUDA backend multiplies matrices with cuBLAS 13; install CUDA 13 or the Python "
              "package nvidia-cublas, or run tools/setup cuda") {
  find(library, get_version, "cublasLtGetVersion");
  find(library, status_name, "cublasLtGetStatusName");
  find(library, create, "cublasLtCreate");
  find(library, destroy, "cublasLtDestroy");
  find(library, matmul, "cublasLtMatmul");
  find(library, heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(library, check_algorithm, "cublasLtMatmulAlgoCheck");
  find(library, create_description, "cublasLtMatmulDescCreate");
  find(library, destroy_description, "cublasLtMatmulDescDestroy");
  find(library, set_description, "cublasLtMatmulDescSetAttribute");
  find(library, create_layout, "cublasLtMatrixLayoutCreate");
  find(library, destroy_layout, "cublasLtMatrixLayoutDestroy");
  find(library, create_preference, "cublasLtMatmulPreferenceCreate");
  find(library, destroy_preference, "cublasLtMatmulPreferenceDestroy");
  find(library, set_preference, "cublasLtMatmulPreferenceSetAttribute");
}

void CublasLt::check(cublasStatus_t status, const std::string& what, cudaStream_t stream) const {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]] {
    return;
  }
  throw Error(ErrorCode::device_error,
              fmt::format("cuBLASLt: {} failed with {}{}", what, status_name(status),
                          cause_in_cuda(stream)),
              static_cast<int>(status));
}

}  // namespace spillway::model::cuda
