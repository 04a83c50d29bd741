// A chunk of tokens in the head: what bounds its logits, and the three gemms on them. A head
// runs over the whole vocabulary or over a tile of it.
#pragma once

#include <cstdint>

#include "runtime/model/ops.hpp"

namespace spillway::model::blocks {

/// Returns the tokens in a chunk, whose logits are about Ops::logits_at_once.
[[nodiscard]] std::uint64_t chunk_tokens(std::uint64_t tokens, std::uint64_t vocabulary,
                                         const Ops& ops);

/// Plans of a chunk's gemms. Full chunks share theirs; the last may be shorter.
struct ChunkPlans {
  GemmPlan logits, input_gradient, weight_gradient;
  Bytes workspace;  ///< of the largest
};

struct ChunkShape {
  std::uint64_t rows = 0;     ///< tokens
  std::uint64_t columns = 0;  ///< of the vocabulary
  std::uint64_t width = 0;
  std::uint64_t stride = 0;  ///< of rows of logits
  /// `gradient` where tiles of the vocabulary add to it.
  GemmOutput input_gradient = GemmOutput::compute;
};

/// Returns a gemm of rows of normalized activations that makes logits.
[[nodiscard]] GemmShape logits_shape(const ChunkShape& shape);

[[nodiscard]] ChunkPlans plan_chunk(const ChunkShape& shape, Ops& ops);

}  // namespace spillway::model::blocks
