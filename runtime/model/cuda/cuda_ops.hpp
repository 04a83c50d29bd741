// The CUDA implementation of Ops: cuBLASLt's gemms, cuDNN's flash attention, and our own
// kernels for the rest (kernels.hpp, attention_kernel.hpp). A build without CUDA has it too, and
// refuses to make one.
//
// Bits depend on shapes and CudaMath, the GPU model and the libraries' versions, and the table of
// gemm algorithms, which a run records; nothing is chosen by a timing. A call enqueues on
// the bound stream and returns.
// Threads: those of Ops, one thread throughout.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runtime/model/cuda/gemm/gemm_choices.hpp"
#include "runtime/model/cuda/workspace.hpp"
#include "runtime/model/ops.hpp"

namespace spillway::model::cuda {

struct CudaOpsOptions {
  CudaMath math = {};
  int device = 0;            ///< as CUDA numbers them
  GemmChoices choices = {};  ///< shapes that are not in it take the library's first proposal
  /// Where cuBLASLt and cuDNN may lie: spillway::cuda_library_directories().
  std::vector<std::filesystem::path> library_directories = {};
};

class CudaOps : public Ops {
 public:
  /// Choices of all gemms planned so far.
  [[nodiscard]] virtual const GemmChoices& choices() const = 0;
  /// Libraries loaded so far, for the record of a run: "cuBLASLt 130100, cuDNN 91900".
  [[nodiscard]] virtual std::string libraries() const = 0;
  /// Kernels that attend, of every shape planned so far: "own", or the engines that cuDNN chose.
  /// For the record of a run.
  [[nodiscard]] virtual std::string attention() const = 0;
  /// Returns where GemmChoices keeps the algorithm of `shape` for operands that start at multiples
  /// of 16 bytes.
  [[nodiscard]] virtual std::string gemm_key(const GemmShape& shape) const = 0;
  /// Times the first `count` algorithms that the library proposes for `shape` and such operands, in
  /// its order; none where it has none. Waits for the device: for profiles, never in a run.
  [[nodiscard]] virtual std::vector<GemmTiming> measure_gemm(const GemmShape& shape,
                                                             const GemmArguments& arguments,
                                                             int count) = 0;
};

/// Loads cuBLASLt; cuDNN when a shape is planned that it serves. Throws `Error{not_supported}` in a
/// build without CUDA, where there is no GPU, or where a library is missing, naming the places.
[[nodiscard]] std::unique_ptr<CudaOps> make_ops(CudaOpsOptions options);

/// Plans as those of `make_ops` do, on any machine and in any build; throws `Error{not_supported}`
/// when it is to compute.
class SizingOps : public Ops {
 public:
  /// All gemms planned so far, each once, in the order of first plans.
  [[nodiscard]] virtual const std::vector<GemmShape>& gemms() const = 0;
  /// Returns the same of attention.
  [[nodiscard]] virtual const std::vector<AttentionShape>& attentions() const = 0;
};
[[nodiscard]] std::unique_ptr<SizingOps> make_sizing_ops(const CudaMath& math);

}  // namespace spillway::model::cuda
