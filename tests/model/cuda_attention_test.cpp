// The bodies of our own CUDA attention, run serially over their grid, against the host's attention.
#include "runtime/base/team.hpp"
#include "runtime/model/cuda/kernels/bodies/attention.hpp"
#include "runtime/model/host/host_ops.hpp"
#include "tests/model/ops_support.hpp"

namespace spillway::model::cuda_attention_test {
namespace {

namespace bodies = cuda::bodies;
using Team = SerialTeam<bodies::kAttentionLanes>;

/// Matrices of one call, q, k and v side by side in wider rows as a layer has them.
class Call {
 public:
  Call(const AttentionShape& shape, DType dtype, Random& random)
      : shape_(shape), dtype_(dtype), tokens_(std::size_t{shape.batch} * shape.sequence) {
    all_ = shape.q_columns() + 2 * shape.kv_columns() + 3;
    shape_.strides = {.q = all_,
                      .k = all_,
                      .v = all_,
                      .q_gradient = all_,
                      .k_gradient = all_,
                      .v_gradient = all_};
    qkv_ = values(tokens_ * all_, random);
    out_gradient_ = values(tokens_ * shape.q_columns(), random);
  }

  struct Result {
    TestMemory out, log_sum, gradient;
  };

  Result host() const {
    const auto ops = host::make_ops({.compute_threads = 1, .compute = dtype_});
    const AttentionPlan plan = ops->plan_attention(shape_);
    const TestMemory space(plan.workspace.value());
    Result r = empty();
    ops->attention_forward(plan, {.q = part<ConstTensor>(qkv_, 0),
                                  .k = part<ConstTensor>(qkv_, k_first()),
                                  .v = part<ConstTensor>(qkv_, v_first()),
                                  .out = {r.out.device(), shape_.q_columns()},
                                  .log_sum = r.log_sum.device().as<float>(),
                                  .workspace = space.device()});
    ops->attention_backward(plan, {.q = part<ConstTensor>(qkv_, 0),
                                   .k = part<ConstTensor>(qkv_, k_first()),
                                   .v = part<ConstTensor>(qkv_, v_first()),
                                   .out = {r.out.device(), shape_.q_columns()},
                                   .out_gradient = {out_gradient_.device(), shape_.q_columns()},
                                   .log_sum = r.log_sum.device().as<const float>(),
                                   .q_gradient = part<Tensor>(r.gradient, 0),
                                   .k_gradient = part<Tensor>(r.gradient, k_first()),
                                   .v_gradient = part<Tensor>(r.gradient, v_first()),
                                   .workspace = space.device()});
    return r;
  }

  /// Every team of every grid, in an order that the device might choose: from the last to the
  /// first.
  template <class T>
  Result teams() const {
    Result r = empty();
    std::vector<float> delta(r.log_sum.as<float>().size(), std::nanf(""));
    const bodies::AttentionSize size{
        .batch = shape_.batch,
        .sequence = shape_.sequence,
        .heads = shape_.heads,
        .kv_heads = shape_.kv_heads,
        .head_dim = shape_.head_dim,
        .scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim))};
    const auto q_tiles = bodies::attention_tiles(size.batch, size.heads, size.sequence);
    const auto kv_tiles = bodies::attention_tiles(size.batch, size.kv_heads, size.sequence);
    const bodies::AttentionForwardCall<T> forward{.size = size,
                                                  .q = heads<const T>(qkv_, 0),
                                                  .k = heads<const T>(qkv_, k_first()),
                                                  .v = heads<const T>(qkv_, v_first()),
                                                  .out = out<T>(r.out),
                                                  .log_sum = r.log_sum.as<float>().data()};
    run(bodies::attention_forward_floats(size.head_dim), q_tiles,
        [&](std::uint64_t tile, float* shared) { attend(Team{}, forward, tile, shared); });
    const bodies::AttentionBackwardCall<T> backward{.size = size,
                                                    .q = forward.q,
                                                    .k = forward.k,
                                                    .v = forward.v,
                                                    .out = out<const T>(r.out),
                                                    .out_gradient = out<const T>(out_gradient_),
                                                    .q_gradient = heads<T>(r.gradient, 0),
                                                    .k_gradient = heads<T>(r.gradient, k_first()),
                                                    .v_gradient = heads<T>(r.gradient, v_first()),
                                                    .log_sum = forward.log_sum,
                                                    .delta = delta.data()};
    run(bodies::attention_q_floats(size.head_dim), q_tiles, [&](std::uint64_t tile, float* shared) {
      attend_backward_q(Team{}, backward, tile, shared);
    });
    run(bodies::attention_kv_floats(size.head_dim), kv_tiles,
        [&](std::uint64_t tile, float* shared) {
          attend_backward_kv(Team{}, backward, tile, shared);
        });
    return r;
  }

 private:
  [[nodiscard]] TestMemory values(std::size_t count, Random& random) const {
    std::vector<float> result(count);
    for (float& value : result) value = random.normal(1);
    return encode(result, dtype_);
  }
  [[nodiscard]] Result empty() const {
    return {TestMemory(tokens_ * shape_.q_columns() * size_of(dtype_)),
            TestMemory(tokens_ * shape_.heads * sizeof(float)),
            TestMemory(tokens_ * all_ * size_of(dtype_))};
  }
  [[nodiscard]] std::size_t k_first() const { return shape_.q_columns(); }
  [[nodiscard]] std::size_t v_first() const { return k_first() + shape_.kv_columns(); }
  template <class View>
  [[nodiscard]] HeadRows<View> part(const TestMemory& memory, std::size_t first) const {
    const std::size_t skipped = first * size_of(dtype_);
    return {memory.device().subspan(skipped, memory.size() - skipped), all_};
  }
  template <class T>
  [[nodiscard]] bodies::Heads<T> heads(const TestMemory& memory, std::size_t first) const {
    return {memory.as<T>().data() + first, all_};
  }
  template <class T>
  [[nodiscard]] bodies::Heads<T> out(const TestMemory& memory) const {
    return {memory.as<T>().data(), shape_.q_columns()};
  }
  template <class Body>
  static void run(std::uint64_t floats, std::uint64_t tiles, Body body) {
    for (std::uint64_t tile = tiles; tile-- > 0;) {
      // Of its own for each team, so that a tool sees what is read unwritten or out of bounds.
      std::vector<float> shared(floats, std::nanf(""));
      body(tile, shared.data());
    }
  }

  AttentionShape shape_;
  DType dtype_;
  std::size_t tokens_;
  std::uint64_t all_ = 0;
  TestMemory qkv_, out_gradient_;
};

class CudaAttention : public testing::TestWithParam<DType> {
 protected:
  void check(const AttentionShape& shape) {
    SCOPED_TRACE(testing::Message()
                 << shape.batch << " x " << shape.sequence << " heads " << shape.heads << "/"
                 << shape.kv_heads << " of " << shape.head_dim << ", seed " << Random::seed());
    const DType dtype = GetParam();
    const Call call(shape, dtype, random_);
    const Call::Result expected = call.host();
    const Call::Result actual = dtype == DType::fp32   ? call.teams<float>()
                                : dtype == DType::bf16 ? call.teams<bodies::Bf16>()
                                                       : call.teams<bodies::Fp16>();
    // Both sum in fp32, in other orders; both store with one rounding, so they may differ by one
    // unit in the last place of bf16 (2^-7 relative) or fp16.
    const double unit = dtype == DType::fp32 ? 0 : dtype == DType::bf16 ? 0x1p-7 : 0x1p-10;
    compare(decode(actual.out, dtype), decode(expected.out, dtype), unit, "out");
    compare(decode(actual.log_sum, DType::fp32), decode(expected.log_sum, DType::fp32), 0,
            "log_sum");
    compare(decode(actual.gradient, dtype), decode(expected.gradient, dtype), unit, "gradients");
  }

 private:
  /// Elements between the heads' rows stay what they were, NaN, on both sides.
  static void compare(const std::vector<float>& actual, const std::vector<float>& expected,
                      double unit, const char* what) {
    ASSERT_EQ(actual.size(), expected.size());
    double largest = 0;
    for (const float value : expected) {
      if (!std::isnan(value)) largest = std::max(largest, std::fabs(static_cast<double>(value)));
    }
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(std::isnan(actual[i]), std::isnan(expected[i])) << what << " at " << i;
      if (std::isnan(expected[i])) continue;
      const auto exact = static_cast<double>(expected[i]);
      ASSERT_NEAR(static_cast<double>(actual[i]), exact, unit * std::fabs(exact) + 1e-5 * largest)
          << what << " at " << i;
    }
  }

  Random random_;
};

TEST_P(CudaAttention, AgreesWithTheHostOnTailsOfEveryKind) {
  for (const std::uint32_t sequence : {1U, 2U, 15U, 16U, 17U, 31U, 32U, 33U, 47U, 65U}) {
    check({.batch = 2, .sequence = sequence, .heads = 2, .kv_heads = 1, .head_dim = 20});
  }
  for (const std::uint32_t dim : {1U, 31U, 33U, 80U, 128U, 160U}) {
    check({.batch = 1, .sequence = 35, .heads = 1, .kv_heads = 1, .head_dim = dim});
  }
}

TEST_P(CudaAttention, SharesKeysAmongAGroupOfQueryHeads) {
  check({.batch = 2, .sequence = 33, .heads = 6, .kv_heads = 2, .head_dim = 8});
  check({.batch = 1, .sequence = 130, .heads = 4, .kv_heads = 1, .head_dim = 64});
  check({.batch = 3, .sequence = 70, .heads = 3, .kv_heads = 3, .head_dim = 16});
}

INSTANTIATE_TEST_SUITE_P(EveryDType, CudaAttention,
                         testing::Values(DType::fp32, DType::bf16, DType::fp16),
                         [](const auto& c) { return std::string(name_of(c.param)); });

}  // namespace
}  // namespace spillway::model::cuda_attention_test
