// One prepared oneDNN gemm: primitives and memory objects made once, executed many times.
#pragma once

#include <memory>

#include "runtime/model/ops.hpp"

namespace spillway::model::host {

/// Whether oneDNN multiplies matrices of `compute` here without widening them.
[[nodiscard]] bool multiplies_natively(DType compute);

/// Multiplies as `shape` on elements of `element` (fp32 or bf16). The calling thread's OpenMP team
/// size must be the same when this is made and when it runs.
class PreparedGemm {
 public:
  PreparedGemm(const GemmShape& shape, DType element);
  ~PreparedGemm();
  PreparedGemm(PreparedGemm&&) noexcept;
  PreparedGemm& operator=(PreparedGemm&&) noexcept;

  [[nodiscard]] const GemmShape& shape() const;
  [[nodiscard]] Bytes workspace() const;
  /// Returns oneDNN's name of the kernel, for logs: "brg:avx512_core".
  [[nodiscard]] const char* kernel_name() const;
  void run(const GemmArguments& arguments);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway::model::host
