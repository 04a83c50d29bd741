// Gemms on cuBLASLt: descriptors and algorithms made when a shape is planned, nothing
// made or allocated when it runs.
//
// The algorithm of a shape is fixed per GPU model, library version and dtype: from a table, else
// the library's own first proposal, which depends on nothing else. It is never chosen by a timing
// inside a run. Operands that all start at multiples of 16 bytes have one algorithm, others
// another. Threads: those of Ops.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <vector>

#include "runtime/model/cuda/cuda_ops.hpp"
#include "runtime/model/cuda/gemm/cublaslt.hpp"
#include "runtime/model/cuda/gemm/gemm_layout.hpp"

namespace spillway::model::cuda {

/// Alignment of the operands that algorithms of one shape are proposed for.
enum class Alignment : std::uint8_t { sixteen, element };
inline constexpr std::uint64_t kAligned = 16;

/// Descriptors of one shape. Move-only; the library outlives them.
class GemmDescriptors {
 public:
  GemmDescriptors(const CublasLt& library, const GemmShape& shape, const CudaMath& math);

  /// Returns the library's proposals within the workspace, best first, at most `count`.
  [[nodiscard]] std::vector<cublasLtMatmulHeuristicResult_t> propose(cublasLtHandle_t handle,
                                                                     Alignment alignment,
                                                                     int count) const;
  /// Whether `algorithm` runs this shape here within the workspace.
  [[nodiscard]] bool accepts(cublasLtHandle_t handle, Alignment alignment,
                             const cublasLtMatmulAlgo_t& algorithm) const;
  void run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
           const GemmArguments& arguments, cudaStream_t stream);

  [[nodiscard]] const GemmShape& shape() const { return shape_; }
  /// Returns a text such as "[4096, 14336] x [14336, 4096]".
  [[nodiscard]] std::string name() const;

 private:
  using Description =
      std::unique_ptr<cublasLtMatmulDescOpaque_t, decltype(&cublasLtMatmulDescDestroy)>;
  using Layout =
      std::unique_ptr<cublasLtMatrixLayoutOpaque_t, decltype(&cublasLtMatrixLayoutDestroy)>;
  /// Describes a bias that is not there yet, by its alignment.
  void describe_bias(Alignment alignment) const;
  [[nodiscard]] Layout make_layout(const ColumnMajor& matrix, cudaDataType_t type) const;

  const CublasLt* library_;
  GemmShape shape_;
  CudaMath math_;
  Description description_;
  Layout left_, right_, result_;
};

struct MultiplierOptions {
  CudaMath math;
  std::string device_name;
  GemmChoices choices;  ///< shapes that are not in it take the library's first proposal
};

class Multiplier {
 public:
  /// The device is current on the calling thread. `library` outlives this.
  Multiplier(const CublasLt& library, MultiplierOptions options);
  ~Multiplier();
  Multiplier(const Multiplier&) = delete;
  Multiplier& operator=(const Multiplier&) = delete;

  /// Throws `Error{not_supported}` if no algorithm runs `shape` within kGemmWorkspace.
  [[nodiscard]] GemmPlan plan(const GemmShape& shape);
  void run(GemmPlan plan, const GemmArguments& arguments, cudaStream_t stream);
  /// Returns where GemmChoices keeps the shape's algorithm.
  [[nodiscard]] std::string key(const GemmShape& shape, Alignment alignment) const;
  /// Choices of all planned shapes, for the record of a run.
  [[nodiscard]] const GemmChoices& used() const { return used_; }

  /// Times the library's first `count` proposals on `arguments`, in its order. Waits for the
  /// device: for profiles.
  [[nodiscard]] std::vector<GemmTiming> measure(const GemmShape& shape,
                                                const GemmArguments& arguments, int count,
                                                cudaStream_t stream);

 private:
  struct Prepared {
    GemmDescriptors descriptors;
    std::optional<cublasLtMatmulAlgo_t> aligned, unaligned;  ///< at least one
  };
  /// Chooses an algorithm, if there is one.
  [[nodiscard]] std::optional<cublasLtMatmulAlgo_t> choose(const GemmDescriptors& descriptors,
                                                           Alignment alignment);

  const CublasLt* library_;
  MultiplierOptions options_;
  cublasLtHandle_t handle_ = nullptr;
  std::vector<Prepared> prepared_;
  GemmChoices used_;
};

}  // namespace spillway::model::cuda
