// What the CUDA operations promise about their workspaces before there is a GPU, and plans made so.
#include "runtime/base/error.hpp"
#include "runtime/model/cuda/cuda_ops.hpp"
#include "tests/model/tiny_models.hpp"

namespace spillway::model::cuda_workspace_test {
namespace {

using cuda::AttentionKind;
using cuda::AttentionPart;
using cuda::CudaMath;

constexpr AttentionShape kLlama8B{
    .batch = 2, .sequence = 8192, .heads = 32, .kv_heads = 8, .head_dim = 128};

AttentionShape with(AttentionShape shape, std::uint32_t batch, std::uint32_t sequence) {
  shape.batch = batch;
  shape.sequence = sequence;
  return shape;
}

TEST(AttentionKind, IsCudnnForAlignedHeadsOf16Bits) {
  const auto kind = [](const AttentionShape& shape, const CudaMath& math = {}) {
    return cuda::attention_kind(shape, math);
  };
  EXPECT_EQ(kind(kLlama8B), AttentionKind::cudnn);
  EXPECT_EQ(kind(kLlama8B, {.compute = DType::fp16}), AttentionKind::cudnn);
  EXPECT_EQ(kind(kLlama8B, {.compute = DType::fp32}), AttentionKind::own);
  EXPECT_EQ(kind(kLlama8B, {.own_attention = true}), AttentionKind::own);
  EXPECT_EQ(kind(with(kLlama8B, 1, 1)), AttentionKind::own);
  EXPECT_EQ(kind(with(kLlama8B, 1, 1023)), AttentionKind::own);
  AttentionShape shape = kLlama8B;
  shape.head_dim = 136;
  EXPECT_EQ(kind(shape), AttentionKind::own);
  shape.head_dim = 84;
  EXPECT_EQ(kind(shape), AttentionKind::own);
  shape = kLlama8B;
  shape.strides.v_gradient = 8 * 128 + 4;
  EXPECT_EQ(kind(shape), AttentionKind::own);
}

TEST(AttentionBackwardPart, KeepsGradientsOfScoresBelowAGiB) {
  const auto part = [](const AttentionShape& shape) {
    const AttentionPart p = cuda::attention_backward_part(shape, {});
    EXPECT_EQ(shape.batch % p.batch, 0U);
    EXPECT_EQ(shape.kv_heads % p.kv_heads, 0U);
    return std::pair(p.batch, p.kv_heads);
  };
  // 4 query heads of 8,192 positions: 4 * 8192^2 * 2 = 512 MiB.
  EXPECT_EQ(part(kLlama8B), std::pair(1U, 2U));
  // 32 heads of 1,024 positions: 64 MiB a window.
  EXPECT_EQ(part(with(kLlama8B, 4, 1024)), std::pair(4U, 8U));
  EXPECT_EQ(part(with(kLlama8B, 64, 1024)), std::pair(16U, 8U));
  EXPECT_EQ(part(with(kLlama8B, 34, 1024)), std::pair(2U, 8U)) << "17 do not fit";
  // One group of heads is the least that there is: 32 GiB.
  EXPECT_EQ(part(with(kLlama8B, 2, 65536)), std::pair(1U, 1U));
  const AttentionPart all = cuda::attention_backward_part(kLlama8B, {.deterministic = false});
  EXPECT_EQ(std::pair(all.batch, all.kv_heads), std::pair(2U, 8U)) << "nothing is kept";
}

TEST(AttentionBackwardPart, GrowsWithTheMemoryThatItMayUse) {
  // Two windows of 32 query heads, 128 MiB a head.
  const auto part = [](Bytes most) {
    const AttentionPart p = cuda::attention_backward_part(kLlama8B, {.score_gradients = most});
    return std::pair(p.batch, p.kv_heads);
  };
  EXPECT_EQ(part(1_MiB), std::pair(1U, 1U));
  EXPECT_EQ(part(2_GiB), std::pair(1U, 4U));
  EXPECT_EQ(part(Bytes{(4ULL << 30) - 1}), std::pair(1U, 4U));
  EXPECT_EQ(part(4_GiB), std::pair(1U, 8U));
  EXPECT_EQ(part(8_GiB), std::pair(2U, 8U));
  EXPECT_GE(cuda::attention_workspace(kLlama8B, {.score_gradients = 8_GiB}), 8_GiB);
}

// GPT-2's 12 heads of 1,024 positions: 24 MiB of gradients of scores and 96 tiles a window.
TEST(AttentionBackwardPart, FillsTheDeviceOnceWhateverItKeeps) {
  const auto windows = [](std::uint32_t batch, const CudaMath& math = {}) {
    const AttentionShape gpt2{
        .batch = batch, .sequence = 1024, .heads = 12, .kv_heads = 12, .head_dim = 64};
    const AttentionPart p = cuda::attention_backward_part(gpt2, math);
    EXPECT_EQ(p.kv_heads, 12U);
    return p.batch;
  };
  EXPECT_EQ(windows(84), 42U) << "1 GiB";
  EXPECT_EQ(windows(43), 43U) << "a window alone has 96 tiles";
  EXPECT_EQ(windows(86), 2U) << "192 tiles are enough";
  EXPECT_EQ(windows(1), 1U) << "there is no more";
  EXPECT_EQ(windows(43, {.least_tiles = 96}), 1U);
  EXPECT_EQ(windows(15, {.score_gradients = 1_MiB}), 3U);
  // 13 heads of 64 tiles and 128 MiB each: 8 keep the bound, 1 divides, 3 fill.
  const AttentionShape wide{
      .batch = 1, .sequence = 8192, .heads = 13, .kv_heads = 13, .head_dim = 128};
  EXPECT_EQ(cuda::attention_backward_part(wide, {}).kv_heads, 13U);
  const AttentionPart part = cuda::attention_backward_part(with(wide, 7, 8192), {});
  EXPECT_EQ(std::pair(part.batch, part.kv_heads), std::pair(1U, 13U));
}

TEST(AttentionBackwardPart, KeepsItsRowsAloneWhereTheDeviceKeepsNoGradientsOfScores) {
  for (const std::uint32_t generation : {0U, 80U, 86U, 87U, 89U, 90U, 110U, 120U, 121U}) {
    const CudaMath math{.generation = generation};
    EXPECT_TRUE(cuda::keeps_score_gradients(math)) << generation;
    EXPECT_EQ(cuda::attention_workspace(kLlama8B, math), cuda::attention_workspace(kLlama8B, {}));
  }
  for (const std::uint32_t generation : {100U, 103U}) {
    const CudaMath math{.generation = generation};
    const AttentionPart part = cuda::attention_backward_part(kLlama8B, math);
    EXPECT_EQ(std::pair(part.batch, part.kv_heads), std::pair(2U, 8U));
    EXPECT_EQ(cuda::attention_workspace(kLlama8B, math),
              cuda::attention_workspace(kLlama8B, {.deterministic = false}));
    EXPECT_LT(cuda::attention_workspace(with(kLlama8B, 1, 65536), math), 2_GiB) << "and not 33";
    EXPECT_EQ(cuda::attention_backward_part(with(kLlama8B, 32, 8192), math).batch, 2U) << "1 GiB";
  }
}

TEST(AttentionWorkspace, HoldsWhatEachImplementationKeeps) {
  const std::uint64_t rows = 2ULL * 32 * 8192;
  EXPECT_EQ(cuda::attention_workspace(kLlama8B, {.compute = DType::fp32}), Bytes{rows * 4});
  const std::uint64_t deterministic = cuda::attention_workspace(kLlama8B, {}).value();
  const std::uint64_t any = cuda::attention_workspace(kLlama8B, {.deterministic = false}).value();
  // A quarter of one window's rows beside their scores' gradients; or all rows of both windows.
  const std::uint64_t a_row = 128 * 12 + 16;
  const std::uint64_t rest = (32ULL << 20) + 256;
  EXPECT_EQ(deterministic, (1ULL << 30) + rows / 8 * a_row + rest);
  EXPECT_EQ(any, rows * a_row + rest);
  EXPECT_GE(deterministic, rows * 4) << "our own kernels may have to stand in";
}

TEST(SizingOps, PlanAWholeModelOnAnyMachineAndComputeNothing) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const auto ops = cuda::make_sizing_ops({.compute = dtype});
    EXPECT_EQ(ops->compute(), dtype);
    const ModelConfig config = tiny_qwen3();
    const Transformer model(config, kBatch, dtype, *ops);
    EXPECT_GE(model.workspace_bytes(), cuda::kGemmWorkspace);
    EXPECT_GE(ops->plan_gemm({.rows = 1, .columns = 1, .inner = 1}).workspace,
              cuda::kGemmWorkspace);
    const TestMemory values(64);
    try {
      ops->fill_zero(values.device().as<float>());
      ADD_FAILURE() << "computed without a GPU";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::not_supported);
    }
    EXPECT_THROW(ops->gemm({}, {}), Error);
    EXPECT_THROW(ops->attention_forward({}, {}), Error);
  }
}

}  // namespace
}  // namespace spillway::model::cuda_workspace_test
