#include "runtime/plan/predict/flops.hpp"

namespace spillway::plan {

double flops_per_token(const DecoderShape& shape) {
  // Multiplying by one weight costs 2 FLOPs forward and 4 backward: three times the forward. A
  // layer has q and o (d*d_q each), k and v (d*d_kv each) and the MLP's matrices (d*d_ff each).
  // Scores and their use take 2*S*d_q each without a mask, half of that with it.
  const double query = shape.query_width > 0 ? shape.query_width : shape.width;
  const double weights = shape.width * (2 * query + 2 * shape.kv_width +  //
                                        shape.mlp_matrices * shape.mlp_width);
  const double forward = 2 * weights + 2 * shape.sequence * query;
  return 3 * shape.layers * forward + 6 * shape.width * shape.vocabulary;
}

}  // namespace spillway::plan
