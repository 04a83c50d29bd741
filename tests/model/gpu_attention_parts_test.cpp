// The backward pass of cuDNN's attention has the same bits in parts of every size.
#include <cstring>

#include "runtime/model/cuda/workspace.hpp"
#include "tests/model/cuda_test_device.hpp"
#include "tests/model/ops_support.hpp"

namespace spillway::model::gpu_attention_parts_test {
namespace {

constexpr AttentionShape kShape{
    .batch = 4, .sequence = 72, .heads = 4, .kv_heads = 2, .head_dim = 64};
constexpr std::size_t kTokens = std::size_t{kShape.batch} * kShape.sequence;

class AttentionParts : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_no_gpu(); !reason.empty()) GTEST_SKIP() << reason;
    use_gpu();
    Random random;
    const auto values = [&](std::uint64_t columns) {
      std::vector<float> list(kTokens * columns);
      for (float& value : list) value = random.normal(1);
      return encode(list, GetParam());
    };
    q_ = values(kShape.q_columns());
    k_ = values(kShape.kv_columns());
    v_ = values(kShape.kv_columns());
    out_gradient_ = values(kShape.q_columns());
  }

  /// The gradients of q, k and v with this bound of what a part keeps.
  [[nodiscard]] std::vector<std::byte> gradients(Bytes score_gradients) const {
    const auto ops =
        make_gpu_ops({.compute = GetParam(), .score_gradients = score_gradients, .least_tiles = 1});
    const AttentionPlan plan = ops->plan_attention(kShape);
    const TestMemory space(plan.workspace.value());
    const TestMemory out(q_.size());
    const TestMemory log_sum(kTokens * kShape.heads * sizeof(float));
    const TestMemory q(q_.size());
    const TestMemory k(k_.size());
    const TestMemory v(v_.size());
    const std::uint64_t columns = kShape.q_columns();
    const std::uint64_t kv_columns = kShape.kv_columns();
    ops->attention_forward(plan, {.q = {q_.device(), columns},
                                  .k = {k_.device(), kv_columns},
                                  .v = {v_.device(), kv_columns},
                                  .out = {out.device(), columns},
                                  .log_sum = log_sum.device().as<float>(),
                                  .workspace = space.device()});
    ops->attention_backward(plan, {.q = {q_.device(), columns},
                                   .k = {k_.device(), kv_columns},
                                   .v = {v_.device(), kv_columns},
                                   .out = {out.device(), columns},
                                   .out_gradient = {out_gradient_.device(), columns},
                                   .log_sum = log_sum.device().as<const float>(),
                                   .q_gradient = {q.device(), columns},
                                   .k_gradient = {k.device(), kv_columns},
                                   .v_gradient = {v.device(), kv_columns},
                                   .workspace = space.device()});
    std::vector<std::byte> all;
    for (const TestMemory* const each : {&q, &k, &v}) {
      all.insert(all.end(), each->data(), each->data() + each->size());
    }
    return all;
  }

  TestMemory q_, k_, v_, out_gradient_;
};

TEST_P(AttentionParts, OfEverySizeHaveTheSameBits) {
  using cuda::score_gradient_bytes;
  const std::vector<std::byte> whole = gradients(1_GiB);
  for (const std::uint64_t most :
       {score_gradient_bytes(kShape, {1, 1}), score_gradient_bytes(kShape, {1, kShape.kv_heads}),
        score_gradient_bytes(kShape, {2, kShape.kv_heads})}) {
    EXPECT_EQ(gradients(Bytes{most}), whole) << most;
  }
}

INSTANTIATE_TEST_SUITE_P(Halves, AttentionParts, testing::Values(DType::bf16, DType::fp16),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

}  // namespace
}  // namespace spillway::model::gpu_attention_parts_test
