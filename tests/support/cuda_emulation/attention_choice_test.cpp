// Which kernels attend: cuDNN's, or ours where they were asked for by name and not otherwise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/error.hpp"
#include "runtime/model/cuda/cuda_ops.hpp"
#include "tests/support/cuda_emulation/emulation.hpp"

namespace spillway::model::cuda::attention_choice_test {
namespace {

constexpr AttentionShape kShape{
    .batch = 1, .sequence = 64, .heads = 2, .kv_heads = 2, .head_dim = 64};

class AttentionChoice : public testing::Test {
 protected:
  ~AttentionChoice() override { cuda_emulation::refuse_attention(nullptr); }
};

TEST_F(AttentionChoice, IsCudnnsAndRecordsItsEngines) {
  const auto ops = make_ops({.math = {.compute = DType::bf16}});
  static_cast<void>(ops->plan_attention(kShape));
  EXPECT_THAT(ops->attention(), testing::StartsWith("cuDNN "));
}

TEST_F(AttentionChoice, IsAnErrorWhereCudnnRefuses) {
  const auto ops = make_ops({.math = {.compute = DType::bf16}});
  cuda_emulation::refuse_attention("no engine fits");
  try {
    static_cast<void>(ops->plan_attention(kShape));
    ADD_FAILURE() << "attends with " << ops->attention();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_supported);
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("no engine fits"),
                                             testing::HasSubstr("spillway.attention \"own\"")));
  }
}

TEST_F(AttentionChoice, IsOurOwnByName) {
  cuda_emulation::refuse_attention("nobody asks");
  const auto ops = make_ops({.math = {.compute = DType::bf16, .own_attention = true}});
  static_cast<void>(ops->plan_attention(kShape));
  EXPECT_EQ(ops->attention(), "own");
}

}  // namespace
}  // namespace spillway::model::cuda::attention_choice_test
