// How a row-major gemm of ops.hpp is put to a column-major library. Pure, no CUDA.
//
// A row-major matrix is its own transpose seen column-major, and (a b)^T = b^T a^T: the library's
// left operand is `b`, its right one `a`, and what it writes column-major [columns x rows] lies in
// memory as `out` [rows, columns]. A bias of one value a column of `out` then runs along the rows
// of the library's result, which is where its bias epilogue puts it.
//   rows 2, columns 3, inner 5, nothing transposed: m 3, n 2, k 5, left [3 x 5] ld 3, right [5 x 2]
//   ld 5, result [3 x 2] ld 3.
#pragma once

#include <cstdint>

#include "runtime/model/ops.hpp"

namespace spillway::model::cuda {

/// Describes a matrix as it is stored, column-major: element (i, j) at i + j * leading.
struct ColumnMajor {
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::uint64_t leading = 0;
  bool operator==(const ColumnMajor&) const = default;
};

/// A gemm: result [m x n] = op(left) [m x k] op(right) [k x n] + beta * added (+ bias [m] a
/// column).
struct ColumnMajorGemm {
  std::uint64_t m = 0;
  std::uint64_t n = 0;
  std::uint64_t k = 0;
  ColumnMajor left;    ///< GemmArguments::b
  ColumnMajor right;   ///< GemmArguments::a
  ColumnMajor result;  ///< and what is added: the residual, or the gradient itself
  bool transpose_left = false;
  bool transpose_right = false;
  bool bias = false;
  bool fp32_result = false;  ///< else the compute dtype, as the operands
};

[[nodiscard]] constexpr ColumnMajorGemm column_major(const GemmShape& s) {
  ColumnMajorGemm p;
  p.m = s.columns;
  p.n = s.rows;
  p.k = s.inner;
  p.transpose_left = s.transpose_b;
  p.transpose_right = s.transpose_a;
  // A row of one is a column of the other: a stride of rows is the leading dimension.
  const auto stored = [](std::uint64_t row, std::uint64_t count, std::uint64_t stride) {
    return ColumnMajor{row, count, stride > 0 ? stride : row};
  };
  p.left = s.transpose_b ? stored(s.inner, s.columns, s.b_stride)
                         : stored(s.columns, s.inner, s.b_stride);
  p.right =
      s.transpose_a ? stored(s.rows, s.inner, s.a_stride) : stored(s.inner, s.rows, s.a_stride);
  p.result = stored(s.columns, s.rows, s.out_stride);
  p.bias = s.bias;
  p.fp32_result = s.output != GemmOutput::compute;
  return p;
}

/// Factor of what is added: the residual, or what a gradient holds already.
[[nodiscard]] constexpr float beta(const GemmShape& s, bool first) {
  return s.residual || (s.output == GemmOutput::gradient && !first) ? 1.0F : 0.0F;
}

}  // namespace spillway::model::cuda
