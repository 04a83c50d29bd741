// A model that a tensor group shares out against the same model whole: outputs, loss and gradients;
// and where the parts' parameters are in the whole model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string_view>

#include "runtime/base/error.hpp"
#include "tests/model/ops_cases.hpp"
#include "tests/model/part_harness.hpp"
#include "tests/model/tiny_models.hpp"

namespace spillway::model::tensor_part_test {
namespace {

/// With every vector that the families know, and sizes that two ranks do not divide.
ModelConfig config_of(Family family, bool tied, std::uint32_t kv_heads = 3) {
  ModelConfig config;
  config.family = family;
  config.vocab_size = 203;
  config.max_context = 40;
  config.layers = 2;
  config.width = 24;
  config.heads = family == Family::gpt2 ? 3 : 6;
  config.kv_heads = kv_heads;
  config.head_dim = 8;
  config.ffn_width = 53;
  config.activation = family == Family::gpt2 ? Activation::gelu_tanh : Activation::silu;
  config.tied_head = tied;
  config.qk_norm = family == Family::qwen3;
  config.qkv_bias = family == Family::llama || family == Family::qwen2;
  config.attention_output_bias = config.mlp_bias = family == Family::llama;
  return config;
}

/// A group, and how many key/value heads its model has.
struct Group {
  TensorPart kind;
  std::uint32_t kv_heads = 3;
};

/// Three ranks divide 57 tokens.
std::vector<Group> groups_of(Family family, bool tied) {
  std::vector<Group> groups{{{.count = 2}}, {{.count = 3}}, {{.count = 3, .sequence = true}}};
  if (tied) return groups;
  // More ranks than key/value heads, which share them evenly or not. GPT-2 has none to share.
  if (family == Family::llama) groups.insert(groups.end(), {{{.count = 4}}, {{.count = 2}, 1}});
  if (family == Family::qwen2) groups.push_back({{.count = 3, .sequence = true}, 1});
  if (family == Family::qwen3) {
    groups.insert(groups.end(), {{{.count = 3, .sequence = true}, 2}, {{.count = 5}, 2}});
  }
  return groups;
}

constexpr Family kFamilies[] = {Family::gpt2, Family::llama, Family::qwen2, Family::qwen3};

class TensorParts : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (const std::string reason = reason_to_skip(); !reason.empty()) GTEST_SKIP() << reason;
  }

  /// Sums in other orders: fp32 a few units in 2^-24 times the depth. In 16 bits each activation
  /// and each rank's addend rounds by up to 2^-9 (bf16) or 2^-12 (fp16), roundings of 20 operators
  /// add up, and the gradients of biases and norms of keys are sums that nearly cancel.
  [[nodiscard]] static double tolerance() {
    return GetParam() == DType::fp32 ? 2e-6 : GetParam() == DType::fp16 ? 7e-3 : 5e-2;
  }

  /// A softmax does not see what all keys have in common, so that sums over keys nearly cancel, and
  /// roundings weigh more in them: 3.4e-6 was seen on an AMD Zen 4, and on an H100 5.2e-2 in bf16
  /// and 9.0e-3 in fp16.
  [[nodiscard]] static double tolerance_of(std::string_view tensor) {
    const bool cancels = tensor.ends_with("k_proj.bias") || tensor.ends_with("k_norm.weight");
    if (!cancels) return tolerance();
    if (GetParam() == DType::fp32) return 5 * tolerance();
    const bool is_gpu = device_tolerance(GetParam()) > 0;
    return (is_gpu ? 2 : 1) * tolerance();
  }
};

TEST_P(TensorParts, HaveTheLossAndGradientsOfTheWholeModel) {
  for (const Family family : kFamilies) {
    for (const bool tied : {false, true}) {
      for (const auto& [kind, kv_heads] : groups_of(family, tied)) {
        SCOPED_TRACE(testing::Message()
                     << name_of(family) << " tied " << tied << " on " << kind.count << " by tokens "
                     << kind.sequence << " with key/value heads " << kv_heads);
        const ModelConfig config = config_of(family, tied, kv_heads);
        const auto whole = make_model(config, make_case_ops(case_of(GetParam())));
        GroupHarness group(config, kBatch, kind, [] { return make_case_ops(case_of(GetParam())); });
        group.copy_parameters(*whole);
        Random random;
        for (const bool first : {true, false}) {
          const Data data(random, config.vocab_size);
          const double expected = whole->step(data.tokens, data.targets, 0.5F, first);
          const auto activations = first ? Activations::kept : Activations::recomputed;
          const double loss = group.step(data.tokens, data.targets, 0.5F, first, activations);
          EXPECT_NEAR(loss, expected, tolerance() * expected);
        }
        group.sum_partial_gradients();
        for (std::uint32_t b = 0; b < whole->blocks(); ++b) {
          const BlockLayout& block = whole->layout().blocks[b];
          const auto actual = group.gradients(b, block.parameters.value());
          for (const ParameterTensor& tensor : block.tensors) {
            const auto at = tensor.first.value();
            const auto count = tensor.count.value();
            EXPECT_LT(distance(std::span(actual).subspan(at, count),
                               whole->gradients(b).subspan(at, count)),
                      tolerance_of(tensor.name))
                << tensor.name;
          }
        }
        if (!tied) continue;
        EXPECT_LT(distance(group.tied_gradients(), whole->tied_gradients()), tolerance());
      }
    }
  }
}

TEST_P(TensorParts, EmbedTokensWithTheBitsOfTheWholeModel) {
  const ModelConfig config = config_of(Family::gpt2, true);
  const auto whole = make_model(config, make_case_ops(case_of(GetParam())));
  GroupHarness group(config, kBatch, {.count = 3},
                     [] { return make_case_ops(case_of(GetParam())); });
  group.copy_parameters(*whole);
  Random random;
  const Data data(random, config.vocab_size);
  whole->step(data.tokens, data.targets, 1, true);
  group.step(data.tokens, data.targets, 1, true);
  const TestMemory& expected = whole->boundary(0);
  EXPECT_EQ(std::memcmp(group.boundary(0).data(), expected.data(), expected.size()), 0);
}

/// Whatever the gradients were, what no parameter has is zero, since norms and updates run over it.
TEST_P(TensorParts, ClearTheGradientsOfPadding) {
  const ModelConfig config = config_of(Family::qwen3, false);
  const auto whole = make_model(config, make_case_ops(case_of(GetParam())));
  GroupHarness group(config, kBatch, {.count = 4},
                     [] { return make_case_ops(case_of(GetParam())); });
  group.copy_parameters(*whole);
  Random random;
  const Data data(random, config.vocab_size);
  group.step(data.tokens, data.targets, 1, true);
  for (std::uint32_t i = 0; i < 4; ++i) {
    PartHarness& part = group.part(i);
    for (std::uint32_t b = 0; b < part.blocks(); ++b) {
      std::vector<bool> used(part.layout().blocks[b].padded_parameters.value());
      for (const ParameterTensor& tensor : part.layout().blocks[b].tensors) {
        const ColumnRange range = tensor.used_in_block();
        std::fill_n(used.begin() + std::ptrdiff_t(range.first), range.count, true);
      }
      const auto gradients = part.gradients[b].as<float>();
      for (std::size_t e = 0; e < used.size(); ++e) {
        ASSERT_TRUE(std::isfinite(gradients[e]));
        ASSERT_TRUE(used[e] || gradients[e] == 0) << "block " << b << " element " << e;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, TensorParts, testing::Values(DType::fp32, DType::bf16, DType::fp16),
                         [](const auto& one) { return std::string(name_of(one.param)); });

/// Every element of the whole model is in one part, or the first part's of what all parts have, and
/// the two directions of the map agree.
TEST(PartMap, CoversTheWholeModelOnce) {
  for (const Family family : kFamilies) {
    const ModelConfig config = config_of(family, false);
    const ModelLayout whole = make_layout(config);
    for (std::uint32_t b = 0; b < whole.blocks.size(); ++b) {
      const BlockLayout& block = whole.blocks[b];
      std::vector<int> found(block.padded_parameters.value());
      const std::uint32_t ranks = family == Family::gpt2 ? 3 : 5;  // than key/value heads
      for (std::uint32_t index = 0; index < ranks; ++index) {
        const PartMap map(config, {.index = index, .count = ranks});
        map.visit_part(BlockIndex{b}, ElementCount{}, block.padded_parameters,
                       [&](const PartRun& run) {
                         for (std::uint64_t i = 0; i < run.count; ++i) {
                           ++found[run.at + i];
                           map.visit_whole(run.block, run.first + ElementCount{i}, ElementCount{1},
                                           [&](const PartRun& back) {
                                             EXPECT_EQ(back.block, BlockIndex{b});
                                             EXPECT_EQ(back.first.value(), run.at + i);
                                           });
                         }
                       });
      }
      const auto used = std::span(found).first(block.parameters.value());
      EXPECT_THAT(used, testing::Each(1)) << block.name;
    }
  }
}

/// By hand, as Megatron-LM cuts them: q, k and v by heads, the output projection by its input.
TEST(PartMap, CutsProjectionsAsWritten) {
  const ModelConfig config = config_of(Family::llama, false);
  const PartMap map(config, {.index = 1, .count = 3});
  const BlockLayout& attention = map.part().blocks[1];
  const auto tensor = [&](std::string_view suffix) -> const ParameterTensor& {
    return *std::ranges::find_if(attention.tensors, [&](const ParameterTensor& t) {
      return std::string_view(t.name).ends_with(suffix);
    });
  };
  // The second of three ranks has heads 2 and 3, and key/value head 1, of 8 elements each.
  EXPECT_EQ(tensor("q_proj.weight").skipped.value(), 2 * 8 * 24U);
  EXPECT_EQ(tensor("q_proj.weight").count.value(), 2 * 8 * 24U);
  EXPECT_EQ(tensor("v_proj.weight").skipped.value(), 8 * 24U);
  EXPECT_EQ(tensor("q_proj.bias").skipped.value(), 2 * 8U);
  const ParameterTensor& out = tensor("o_proj.weight");
  ASSERT_EQ(out.columns.size(), 1U);
  EXPECT_EQ(out.columns[0].first, 2 * 8U);
  EXPECT_EQ(out.columns[0].count, 2 * 8U);
  EXPECT_EQ(attention.shared_first.value() % kLeafParameters, 0U);
  // What all ranks have begins with the biases: norms may be summed, and lie behind them.
  EXPECT_EQ(tensor("o_proj.bias").first, attention.shared_first);
  EXPECT_EQ(tensor("input_layernorm.weight").first, attention.shared_first + ElementCount{24});
}

/// Whatever there is of both: ranks in a row have heads in a row, each some, the first the most,
/// and each the key/value heads that they read.
TEST(TensorPart, SharesOutEveryHeadOnce) {
  ModelConfig config;
  for (config.kv_heads = 1; config.kv_heads <= 6; ++config.kv_heads) {
    for (std::uint32_t group = 1; group <= 6; ++group) {
      config.heads = config.kv_heads * group;
      for (std::uint32_t count = 1; count <= config.heads; ++count) {
        std::uint64_t next = 0;
        const std::uint64_t most = heads_of(config, {.index = 0, .count = count}).queries.size();
        for (std::uint32_t index = 0; index < count; ++index) {
          const HeadShare share = heads_of(config, {.index = index, .count = count});
          ASSERT_EQ(share.queries.first, next) << index << " of " << count;
          ASSERT_GT(share.queries.size(), 0U);
          ASSERT_LE(share.queries.size(), most);
          ASSERT_EQ(share.keys.first, share.queries.first / group);
          ASSERT_EQ(share.keys.end, (share.queries.end - 1) / group + 1);
          ASSERT_EQ(share.shares_keys, count > config.kv_heads);
          next = share.queries.end;
        }
        ASSERT_EQ(next, config.heads);
      }
    }
  }
}

/// The last two of four ranks share the last key/value head of three, and all have its matrices.
TEST(PartMap, LeavesSharedKeyHeadsToAllRanks) {
  const ModelConfig config = config_of(Family::llama, false);
  const PartMap map(config, {.index = 3, .count = 4});
  const BlockLayout& attention = map.part().blocks[1];
  for (const ParameterTensor& tensor : attention.tensors) {
    const bool of_keys = tensor.name.ends_with("k_proj.weight");
    if (!of_keys && !tensor.name.ends_with("v_proj.weight")) continue;
    EXPECT_EQ(tensor.count.value(), 3 * 8 * 24U);
    EXPECT_GE(tensor.first, attention.partial_first);
    EXPECT_EQ(tensor.used.first, 2 * 8 * 24U);
    EXPECT_EQ(tensor.used.count, 8 * 24U);
  }
}

TEST(TensorPart, RefusesMoreRanksThanThereAreHeads) {
  const ModelConfig config = config_of(Family::llama, false);
  try {
    static_cast<void>(make_layout(config, TensorPart{.index = 0, .count = 7}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), testing::HasSubstr("6 heads"));
    EXPECT_THAT(error.what(), testing::HasSubstr("at most 6 ranks"));
  }
}

}  // namespace
}  // namespace spillway::model::tensor_part_test
