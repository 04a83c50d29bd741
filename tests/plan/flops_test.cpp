// FLOPs of a token, against published models and sums by hand.
#include "runtime/plan/predict/flops.hpp"

#include <gtest/gtest.h>

#include "tests/plan/plan_helpers.hpp"

namespace spillway::plan::flops_test {
namespace {

TEST(Flops, ReproduceLlamaEightBillion) {
  const nlohmann::json golden = golden_json("flops.json");
  ASSERT_EQ(golden.at("rows").size(), 2U);
  for (const nlohmann::json& row : golden.at("rows")) {
    const double flops = flops_per_token({.layers = row.at("L"),
                                          .width = row.at("d"),
                                          .kv_width = row.at("d_kv"),
                                          .mlp_width = row.at("d_ff"),
                                          .vocabulary = row.at("V"),
                                          .sequence = row.at("S")});
    const double expected = row.at("flop_per_token");
    EXPECT_NEAR(flops / expected, 1, 1e-4) << row.dump();  // printed with four digits
  }
}

TEST(Flops, CountHeadsWiderThanTheModelAndAnMlpWithoutGate) {
  // One layer, no head: 6 FLOPs a weight and token, and causal attention's 6*S*d_q.
  const double flops = flops_per_token({.layers = 1,
                                        .width = 8,
                                        .kv_width = 4,
                                        .mlp_width = 32,
                                        .sequence = 16,
                                        .query_width = 12,
                                        .mlp_matrices = 2});
  const double weights = 2 * 8 * 12 + 2 * 8 * 4 + 2 * 8 * 32;
  EXPECT_DOUBLE_EQ(flops, 6 * weights + 6.0 * 16 * 12);
}

}  // namespace
}  // namespace spillway::plan::flops_test
