// Attention takes what a plan leaves of the device's memory, and no more. The ranks of a tensor
// group plan with the workspace of the one that needs most.
#include "runtime/engine/prepare/score_gradients.hpp"

#include <gtest/gtest.h>

#include <variant>

#include "runtime/engine/device/model_runtime.hpp"
#include "runtime/engine/prepare/place.hpp"
#include "runtime/engine/prepare/workload.hpp"
#include "runtime/plan/search/choose.hpp"

namespace spillway::engine::score_gradients_test {
namespace {

/// Two layers as those of Llama-3-8B: 4 GiB of gradients of scores a window.
model::ModelConfig wide_llama() {
  model::ModelConfig config;
  config.family = model::Family::llama;
  config.vocab_size = 1024;
  config.max_context = 8192;
  config.layers = 2;
  config.width = 4096;
  config.heads = 32;
  config.kv_heads = 8;
  config.head_dim = 128;
  config.ffn_width = 14336;
  config.activation = model::Activation::silu;
  return config;
}

class ScoreGradients : public testing::Test {
 protected:
  ScoreGradients() {
    options_.device = config::DeviceKind::cuda;
    options_.compute = DType::bf16;
    options_.context = 8192;
    options_.micro_batch = 2;
    place();
  }

  void place() {
    workload_ = make_workload(config_, options_);
    const plan::Budgets budgets{.device = 80_GiB, .host = 80_GiB, .nvme = 80_GiB};
    placement_ = std::get<plan::Placement>(
        plan::choose_placement(workload_, budgets, placement_request(options_)));
    used_ = used(workload_);
  }

  [[nodiscard]] Bytes used(const plan::Workload& workload) const {
    return plan::total(plan::memory_items(workload, placement_), plan::Tier::device);
  }
  [[nodiscard]] Bytes bound(Bytes device) const {
    return spare_score_gradients(config_, {.options = options_,
                                           .workload = workload_,
                                           .budgets = {.device = device, .host = {}, .nvme = {}},
                                           .placement = placement_});
  }
  /// What the run takes of the device with this bound.
  [[nodiscard]] Bytes used_with(Bytes score_gradients) const {
    const ModelRuntime sizes =
        make_model_sizes(config_, options_, {.score_gradients = score_gradients});
    return used(make_workload(config_, *sizes.transformer, options_));
  }

  model::ModelConfig config_ = wide_llama();
  config::TrainOptions options_;
  plan::Workload workload_;
  plan::Placement placement_;
  Bytes used_;
};

TEST_F(ScoreGradients, TakeWhatThePlanLeavesOfTheDevice) {
  EXPECT_EQ(bound(used_), 1_GiB) << "nothing is left";
  EXPECT_EQ(bound(used_ + 20_GiB), 8_GiB) << "all of two windows";
  EXPECT_EQ(bound(used_ + 4_GiB), 4_GiB);
  for (Bytes left = 0_GiB; left < 12_GiB; left += 512_MiB) {
    EXPECT_LE(used_with(bound(used_ + left)), used_ + left) << format_bytes(left);
  }
}

// A rank's heads are 16, whose gradients of scores are 4 GiB for two windows.
TEST_F(ScoreGradients, OfATensorGroupHaveTheirWorkspaceToo) {
  options_.tensor.ranks = 2;
  place();
  const Bytes wider = bound(used_ + 20_GiB);
  EXPECT_EQ(wider, 4_GiB);
  const ModelRuntime sizes = make_model_sizes(config_, options_, {.score_gradients = wider});
  EXPECT_GE(make_workload(config_, *sizes.transformer, options_).workspace_bytes,
            sizes.transformer->workspace_bytes());
}

TEST_F(ScoreGradients, AreAsUsualWhereNothingIsKept) {
  options_.deterministic = false;
  EXPECT_EQ(bound(1024_GiB), 1_GiB);
  options_.deterministic = true;
  options_.attention = config::AttentionChoice::own;
  EXPECT_EQ(bound(1024_GiB), 1_GiB);
  options_.device = config::DeviceKind::host;
  EXPECT_EQ(bound(1024_GiB), 1_GiB);
}

// 1 GiB of gradients of scores is not there to be kept, nor more where a plan leaves memory.
TEST_F(ScoreGradients, AreNotPlannedForAGpuThatKeepsNone) {
  options_.micro_batch = 1;
  place();
  const Bytes kept = workload_.workspace_bytes;
  options_.device_generation = 90;
  place();
  EXPECT_EQ(workload_.workspace_bytes, kept);
  options_.device_generation = 100;
  place();
  EXPECT_LT(workload_.workspace_bytes + 512_MiB, kept);
  EXPECT_EQ(bound(1024_GiB), 1_GiB);
}

/// Of 128 Ki words the logits of 2,048 tokens are made at once; the first rank has a word more, and
/// so fewer tokens.
TEST(WorkloadOfATensorGroup, HasTheWorkspaceOfTheRankThatNeedsMost) {
  model::ModelConfig config = wide_llama();
  config.vocab_size = (256U << 10) + 1;
  config::TrainOptions options;
  options.device = config::DeviceKind::cuda;
  options.compute = DType::bf16;
  options.context = 2048;
  options.tensor.ranks = 2;
  const Bytes of_first = make_model_sizes(config, options).transformer->workspace_bytes();
  const Bytes planned = make_workload(config, options).workspace_bytes;
  const Bytes of_second =
      make_model_sizes(config, options, {.tensor_index = 1}).transformer->workspace_bytes();
  EXPECT_LT(of_first, of_second);
  EXPECT_EQ(planned, of_second);
}

}  // namespace
}  // namespace spillway::engine::score_gradients_test
