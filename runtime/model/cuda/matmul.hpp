// Matrix products on cuBLASLt: descriptors and algorithms made when a shape is planned, nothing
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

#include "runtime/model/cuda/cublaslt.hpp"
#include "runtime/model/cuda/cuda_ops.hpp"
#include "runtime/model/cuda/matmul_layout.hpp"

namespace spillway::model::cuda {

/// Which algorithms are proposed for one shape.
enum class Alignment : std::uint8_t { sixteen, element };
inline constexpr std::uint64_t kAligned = 16;

/// Descriptors of one shape. Move-only; the library outlives it.
class MatmulDescriptors {
 public:
  MatmulDescriptors(const CublasLt& library, const MatmulShape& shape, const CudaMath& math);

  /// The library's proposals within the workspace, best first, at most `count`.
  [[nodiscard]] std::vector<cublasLtMatmulHeuristicResult_t> propose(cublasLtHandle_t handle,
                                                                     Alignment alignment,
                                                                     int count) const;
  /// Whether `algorithm` runs this shape here within the workspace.
  [[nodiscard]] bool accepts(cublasLtHandle_t handle, Alignment alignment,
                             const cublasLtMatmulAlgo_t& algorithm) const;
  void run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
           const MatmulArguments& arguments, cudaStream_t stream);

  [[nodiscard]] const MatmulShape& shape() const { return shape_; }
  /// "[4096, 14336] x [14336, 4096]"
  [[nodiscard]] std::string name() const;

 private:
  using Description =
      std::unique_ptr<cublasLtMatmulDescOpaque_t, decltype(&cublasLtMatmulDescDestroy)>;
  using Layout =
      std::unique_ptr<cublasLtMatrixLayoutOpaque_t, decltype(&cublasLtMatrixLayoutDestroy)>;
  /// Of a bias that is not there yet only the alignment is looked at.
  void describe_bias(Alignment alignment) const;
  [[nodiscard]] Layout make_layout(const ColumnMajor& matrix, cudaDataType_t type) const;

  const CublasLt* library_;
  MatmulShape shape_;
  CudaMath math_;
  Description description_;
  Layout left_, right_, result_;
};

struct MultiplierOptions {
  CudaMath math;
  std::string device_name;
  MatmulChoices choices;  ///< shapes that are not in it take the library's first proposal
};

class Multiplier {
 public:
  /// The device is current on the calling thread. `library` outlives this.
  Multiplier(const CublasLt& library, MultiplierOptions options);
  ~Multiplier();
  Multiplier(const Multiplier&) = delete;
  Multiplier& operator=(const Multiplier&) = delete;

  /// Throws `Error{not_supported}` if no algorithm runs `shape` within kMatmulWorkspace.
  [[nodiscard]] MatmulPlan plan(const MatmulShape& shape);
  void run(MatmulPlan plan, const MatmulArguments& arguments, cudaStream_t stream);
  /// Where MatmulChoices keeps the shape's algorithm.
  [[nodiscard]] std::string key(const MatmulShape& shape, Alignment alignment) const;
  /// What every planned shape uses, for the record of a run.
  [[nodiscard]] const MatmulChoices& used() const { return used_; }

  /// Times the library's first `count` proposals on `arguments`, in its order. Waits for the
  /// device: for profiles.
  [[nodiscard]] std::vector<MatmulTiming> measure(const MatmulShape& shape,
                                                  const MatmulArguments& arguments, int count,
                                                  cudaStream_t stream);

 private:
  struct Prepared {
    MatmulDescriptors descriptors;
    std::optional<cublasLtMatmulAlgo_t> aligned, unaligned;  ///< at least one
  };
  /// Nothing where the library has none.
  [[nodiscard]] std::optional<cublasLtMatmulAlgo_t> choose(const MatmulDescriptors& descriptors,
                                                           Alignment alignment);

  const CublasLt* library_;
  MultiplierOptions options_;
  cublasLtHandle_t handle_ = nullptr;
  std::vector<Prepared> prepared_;
  MatmulChoices used_;
};

}  // namespace spillway::model::cuda
