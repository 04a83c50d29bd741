// The host implementation of Ops: oneDNN gemms and vector kernels on OpenMP threads.
#pragma once

#include <memory>
#include <string_view>

#include "runtime/model/ops.hpp"

namespace spillway::model::host {

struct HostOpsOptions {
  int compute_threads = 1;  ///< part of the mathematics: gemm sums depend on it
  DType compute = DType::fp32;
  std::string_view kernels =
      {};  ///< "avx512", "avx2", "portable"; empty: the best of this processor
  /// Widens bf16 to fp32 for gemm even where oneDNN has it natively, as on a processor without.
  bool widen_gemm = false;
};

/// Returns operations whose spans are host memory. Calls run on the calling thread and
/// `compute_threads - 1` OpenMP workers. A call makes no heap allocation outside oneDNN. Bits
/// depend on shapes, compute dtype, `compute_threads`, the processor model and the oneDNN version
/// only.
[[nodiscard]] std::unique_ptr<Ops> make_ops(const HostOpsOptions& options);

}  // namespace spillway::model::host
