#include "runtime/model/blocks/head_chunk.hpp"

#include <algorithm>

namespace spillway::model::blocks {

std::uint64_t chunk_tokens(std::uint64_t tokens, std::uint64_t vocabulary, const Ops& ops) {
  const std::uint64_t fitting =
      ops.logits_at_once().value() / (ops.logits_stride(vocabulary) * sizeof(float)) / 64 * 64;
  return std::min(tokens, std::max<std::uint64_t>(64, fitting));
}

namespace {

/// Returns the stride as a GemmShape has it.
std::uint64_t gemm_stride(const ChunkShape& s) { return s.stride == s.columns ? 0 : s.stride; }

}  // namespace

GemmShape logits_shape(const ChunkShape& s) {
  return {.rows = s.rows,
          .columns = s.columns,
          .inner = s.width,
          .transpose_b = true,
          .output = GemmOutput::fp32,
          .out_stride = gemm_stride(s)};
}

ChunkPlans plan_chunk(const ChunkShape& s, Ops& ops) {
  ChunkPlans plans;
  plans.logits = ops.plan_gemm(logits_shape(s));
  plans.input_gradient = ops.plan_gemm({.rows = s.rows,
                                        .columns = s.width,
                                        .inner = s.columns,
                                        .output = s.input_gradient,
                                        .a_stride = gemm_stride(s)});
  plans.weight_gradient = ops.plan_gemm({.rows = s.columns,
                                         .columns = s.width,
                                         .inner = s.rows,
                                         .transpose_a = true,
                                         .output = GemmOutput::gradient,
                                         .a_stride = gemm_stride(s)});
  plans.workspace = std::max(
      {plans.logits.workspace, plans.input_gradient.workspace, plans.weight_gradient.workspace});
  return plans;
}

}  // namespace spillway::model::blocks
