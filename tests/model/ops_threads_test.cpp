// What only the host's operations do: refuse tokens, and deal themselves to threads, whose number
// changes no bit of any of them but gemm, whose sums oneDNN arranges by it.
#include <omp.h>

#include "runtime/base/error.hpp"
#include "runtime/model/host/host_ops.hpp"
#include "runtime/model/host/parallel.hpp"
#include "runtime/model/rope_frequencies.hpp"
#include "tests/model/ops_support.hpp"

namespace spillway::model::ops_threads_test {
namespace {

constexpr std::size_t kRows = 600;
constexpr std::size_t kColumns = 100;
constexpr std::size_t kCount = kRows * kColumns;
constexpr AttentionShape kAttention{
    .batch = 3, .sequence = 200, .heads = 4, .kv_heads = 2, .head_dim = 25};

/// One run of every operation but gemm on a number of threads, from the same operands.
class AllOperations {
 public:
  AllOperations(int threads, DType dtype)
      : dtype_(dtype), ops_(host::make_ops({.compute_threads = threads, .compute = dtype})) {
    norms();
    activations();
    attention();
    embedding_and_loss();
  }
  [[nodiscard]] const std::vector<std::byte>& results() const { return results_; }

 private:
  Operand random(std::size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = random_.normal(1);
    return {values, dtype_};
  }
  [[nodiscard]] TestMemory elements(std::size_t count) const {
    return TestMemory(count * size_of(dtype_));
  }
  void keep(const TestMemory& memory) {
    results_.insert(results_.end(), memory.data(), memory.data() + memory.size());
  }

  void norms() {
    const NormShape shape{.kind = NormKind::layer, .tokens = kRows, .width = kColumns};
    const Operand x = random(kCount);
    const Operand w = random(kColumns);
    const TestMemory y = elements(kCount);
    const TestMemory statistics(2 * kRows * sizeof(float));
    ops_->norm_forward(shape, {.input = {x.device(), kColumns},
                               .weight = w.device(),
                               .bias = w.device(),
                               .out = {y.device(), kColumns},
                               .statistics = statistics.device().as<float>()});
    const TestMemory dx = elements(kCount);
    const TestMemory dw(kColumns * sizeof(float));
    const TestMemory db(kColumns * sizeof(float));
    const TestMemory space(ops_->reduction_workspace(kRows, 2 * kColumns).value());
    ops_->norm_backward(shape, {.input = {x.device(), kColumns},
                                .weight = w.device(),
                                .out_gradient = {y.device(), kColumns},
                                .statistics = statistics.device().as<const float>(),
                                .residual_gradient = {},
                                .input_gradient = {dx.device(), kColumns},
                                .weight_gradient = {dw.device().as<float>(), true},
                                .bias_gradient = {db.device().as<float>(), true},
                                .workspace = space.device()});
    for (const TestMemory* memory : {&y, &statistics, &dx, &dw, &db}) keep(*memory);
    ops_->bias_gradient(kRows, {x.device(), kColumns}, {db.device().as<float>(), false},
                        space.device());
    keep(db);
  }

  void activations() {
    for (const Activation kind : {Activation::gelu_tanh, Activation::silu}) {
      const ActivationShape shape{.kind = kind, .rows = kRows, .columns = kColumns};
      const std::size_t inputs = kind == Activation::silu ? 2 * kCount : kCount;
      const Operand x = random(inputs);
      const Operand dy = random(kCount);
      const TestMemory y = elements(kCount);
      const TestMemory dx = elements(inputs);
      ops_->activation_forward(shape, x.device(), y.device());
      keep(y);
      ops_->activation_backward(shape, {.input = x.device(),
                                        .out_gradient = dy.device(),
                                        .input_gradient = dx.device(),
                                        .out = y.device()});
      keep(dx);
    }
  }

  void attention() {
    const std::size_t tokens = std::size_t{kAttention.batch} * kAttention.sequence;
    const std::size_t width = std::size_t{kAttention.heads} * kAttention.head_dim;
    const std::size_t kv_width = std::size_t{kAttention.kv_heads} * kAttention.head_dim;
    const Operand q = random(tokens * width);
    const Operand k = random(tokens * kv_width);
    const std::vector<float> angles = rope_angles(std::vector<float>(12, 0.5F), 200);
    ops_->rope({.heads = {q.device(), width},
                .tokens = tokens,
                .head_count = 4,
                .head_dim = 24,
                .sequence = 200,
                .angles = {angles.data(), angles.size()}});
    const AttentionPlan plan = ops_->plan_attention(kAttention);
    const TestMemory space(plan.workspace.value());
    const TestMemory out = elements(tokens * width);
    const TestMemory log_sum(tokens * kAttention.heads * sizeof(float));
    ops_->attention_forward(plan, {.q = {q.device(), width},
                                   .k = {k.device(), kv_width},
                                   .v = {k.device(), kv_width},
                                   .out = {out.device(), width},
                                   .log_sum = log_sum.device().as<float>(),
                                   .workspace = space.device()});
    const TestMemory dq = elements(tokens * width);
    const TestMemory dk = elements(tokens * kv_width);
    const TestMemory dv = elements(tokens * kv_width);
    ops_->attention_backward(plan, {.q = {q.device(), width},
                                    .k = {k.device(), kv_width},
                                    .v = {k.device(), kv_width},
                                    .out = {out.device(), width},
                                    .out_gradient = {q.device(), width},
                                    .log_sum = log_sum.device().as<const float>(),
                                    .q_gradient = {dq.device(), width},
                                    .k_gradient = {dk.device(), kv_width},
                                    .v_gradient = {dv.device(), kv_width},
                                    .workspace = space.device()});
    for (const TestMemory* memory : {&q.memory, &out, &log_sum, &dq, &dk, &dv}) keep(*memory);
  }

  void embedding_and_loss() {
    const EmbeddingShape shape{
        .batch = 6, .sequence = 100, .width = 300, .vocabulary = 50, .positions = 100};
    std::vector<std::int32_t> ids(kRows);
    for (std::int32_t& id : ids) id = random_.below(50);
    const Operand words = random(50 * 300);
    const Operand places = random(100 * 300);
    const TestMemory out = elements(kRows * 300);
    ops_->embedding_forward(shape, {ids.data(), kRows}, words.device(), places.device(),
                            out.device());
    const TestMemory dw(50 * 300 * sizeof(float));
    const TestMemory dp(100 * 300 * sizeof(float));
    ops_->embedding_backward(shape, {ids.data(), kRows}, out.device(),
                             {dw.device().as<float>(), true}, {dp.device().as<float>(), true},
                             TestMemory(ops_->embedding_workspace(shape).value()).device());
    std::vector<float> logits(kCount);
    for (float& value : logits) value = random_.normal(2);
    const TestMemory device_logits{std::span<const float>(logits)};
    const TestMemory gradient = elements(kCount);
    const TestMemory space(ops_->reduction_workspace(kRows, 2).value());
    const TestMemory loss(sizeof(double));
    ops_->cross_entropy({.rows = kRows,
                         .vocabulary = kColumns,
                         .logits = device_logits.device().as<const float>(),
                         .targets = {ids.data(), kRows},
                         .loss_sum = loss.device().as<double>(),
                         .first = true,
                         .gradient_scale = 1,
                         .logits_gradient = gradient.device(),
                         .workspace = space.device()});
    for (const TestMemory* memory : {&out, &dw, &dp, &gradient, &loss}) keep(*memory);
  }

  Random random_;
  DType dtype_;
  std::unique_ptr<Ops> ops_;
  std::vector<std::byte> results_;
};

class Threads : public testing::TestWithParam<DType> {};

TEST_P(Threads, ChangeNoBitOutsideGemm) {
  const AllOperations one(1, GetParam());
  for (const int threads : {2, 3, 7}) {
    const AllOperations several(threads, GetParam());
    EXPECT_TRUE(several.results() == one.results()) << threads << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(EveryDType, Threads,
                         testing::Values(DType::fp32, DType::bf16, DType::fp16),
                         [](const auto& c) { return std::string(name_of(c.param)); });

TEST(HostOps, DealsEveryItemToOneThreadInWholeUnits) {
  for (const std::size_t count : {0U, 1U, 15U, 16U, 17U, 100U, 1000U}) {
    for (const std::size_t unit : {1U, 3U, 16U}) {
      for (const int parts : {1, 2, 3, 7}) {
        std::size_t dealt = 0;
        for (int part = 0; part < parts; ++part) {
          const host::Range range = host::split(count, unit, parts, part);
          EXPECT_EQ(range.first, dealt) << count << " in units of " << unit << ", part " << part;
          EXPECT_TRUE(range.last % unit == 0 || range.last == count) << range.last;
          dealt = range.last;
        }
        EXPECT_EQ(dealt, count);
      }
    }
  }
}

/// A team of one thread still costs more than many a small operation.
TEST(HostOps, RunsASinglePartWithoutATeam) {
  int level = -1;
  host::run_parts(
      1, [](void* context, int /*part*/) { *static_cast<int*>(context) = omp_get_level(); },
      &level);
  EXPECT_EQ(level, 0);
}

TEST(HostOps, RefusesTokensOutsideTheVocabularyByPosition) {
  const EmbeddingShape s{.batch = 1, .sequence = 3, .width = 4, .vocabulary = 10, .positions = 0};
  const auto ops = host::make_ops({.compute_threads = 1});
  const Operand table(std::vector<float>(40), DType::fp32);
  const TestMemory out(12 * sizeof(float));
  const TestMemory gradient(40 * sizeof(float));
  for (const std::int32_t bad : {10, -1}) {
    const std::vector<std::int32_t> ids = {1, bad, 2};
    EXPECT_THROW(ops->embedding_backward(s, {ids.data(), ids.size()}, out.device(),
                                         {gradient.device().as<float>(), true}, {}, {}),
                 Error);
    try {
      ops->embedding_forward(s, {ids.data(), ids.size()}, table.device(), {}, out.device());
      FAIL() << "accepted token " << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), testing::HasSubstr("position 1"));
      EXPECT_THAT(error.what(), testing::HasSubstr(std::to_string(bad)));
    }
  }
}

}  // namespace
}  // namespace spillway::model::ops_threads_test
