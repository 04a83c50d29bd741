// What is advised where a run does not fit.
#include "runtime/engine/prepare/remedies.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <variant>

#include "runtime/engine/prepare/place.hpp"
#include "runtime/engine/prepare/remedy_families.hpp"
#include "runtime/engine/prepare/workload.hpp"
#include "runtime/plan/search/choose.hpp"

namespace spillway::engine::remedies_test {
namespace {

/// 520 Mi parameters: 33,000 tiles of 16,384, and more than 65,536 of 8,192.
model::ModelConfig large_model() {
  model::ModelConfig config;
  config.family = model::Family::llama;
  config.activation = model::Activation::silu;
  config.tied_head = false;
  config.vocab_size = 64;
  config.width = config.ffn_width = 1024;
  config.layers = 74;
  config.heads = config.kv_heads = 16;
  config.head_dim = 64;
  config.max_context = 16;
  return config;
}

config::TrainOptions options_of_tile(std::uint64_t operator_tile) {
  config::TrainOptions options;
  options.device = config::DeviceKind::host;
  options.micro_batch = 1;
  options.context = 16;
  options.compute_threads = 1;
  options.operator_tile = operator_tile;
  return options;
}

constexpr plan::Budgets kNoDevice{.device = {}, .host = 64_GiB, .nvme = 64_GiB};

/// The refusal of layers in tiles of this size by a device without memory.
plan::Shortage shortage_with_tiles(std::uint64_t operator_tile) {
  const config::TrainOptions options = options_of_tile(operator_tile);
  const plan::Workload workload = make_workload(large_model(), options);
  return std::get<plan::Shortage>(
      plan::choose_placement(workload, kNoDevice, placement_request(options)));
}

bool advises(const plan::Budgets& budgets, std::string_view what) {
  const auto advice =
      what_would_fit(large_model(), options_of_tile(0), budgets, shortage_with_tiles(0), {});
  return std::ranges::any_of(
      advice, [&](const std::string& text) { return text.find(what) != std::string::npos; });
}

// A plan lists every part of every layer: looking at millions of them would take minutes.
TEST(Remedies, CutLayersIntoPartsOnlyWhileThereAreFewEnough) {
  plan::Budgets budgets = kNoDevice;
  budgets.device = shortage_with_tiles(16'384).needed;
  EXPECT_TRUE(advises(budgets, "spillway.operator_tile 16384 (other rounding) ("));
  budgets.device = shortage_with_tiles(8'192).needed;
  ASSERT_LT(budgets.device, shortage_with_tiles(16'384).needed);
  EXPECT_FALSE(advises(budgets, "spillway.operator_tile 8192"));
}

/// A run that needs a little of both memories, with what it is refused.
struct Refused {
  config::TrainOptions options = options_of_tile(0);
  plan::Budgets budgets{.device = 1_KiB, .host = 1_KiB, .nvme = 64_GiB};
  plan::Workload workload = make_workload(large_model(), options);

  /// Returns all that is advised, what fits with more memory first.
  [[nodiscard]] std::vector<std::string> advice(const BudgetsFor& budgets_for) const {
    const auto choice = plan::choose_placement(workload, budgets, placement_request(options));
    return what_would_fit(large_model(), options, budgets, std::get<plan::Shortage>(choice),
                          budgets_for);
  }
};

/// The size behind "FLAG of at least " in a text.
Bytes size_of(const std::string& text, const std::string& flag) {
  const std::string before = flag + " of at least ";
  const std::size_t at = text.find(before);
  if (at == std::string::npos) return {};
  const std::string size = text.substr(at + before.size());
  return parse_bytes(size.substr(0, size.find('B') + 1));
}

TEST(Remedies, NameSizesOfMemoryThatFitAsTheyAreWritten) {
  const Refused refused;
  const std::string advice = refused.advice({}).front();
  const plan::Budgets advised{.device = size_of(advice, "--device-memory"),
                              .host = size_of(advice, "--host-memory"),
                              .nvme = refused.budgets.nvme};
  EXPECT_GT(advised.device, 1_KiB) << advice;
  EXPECT_GT(advised.host, 1_KiB) << advice;
  EXPECT_NO_THROW(
      static_cast<void>(place(large_model(), refused.options, refused.workload, advised)));
}

TEST(Remedies, NameNoFlagThatTheMachineCannotFollow) {
  const Refused refused;
  const BudgetsFor poor_host = [&](const config::TrainOptions& options, const plan::Workload&) {
    return plan::Budgets{.device = options.device_memory.value_or(1_KiB),
                         .host = 1_KiB,
                         .nvme = refused.budgets.nvme};
  };
  const std::string advice = refused.advice(poor_host).front();
  EXPECT_GT(size_of(advice, "--device-memory"), 1_KiB) << advice;
  EXPECT_GT(size_of(advice, "free host memory"), 1_KiB) << advice;
  EXPECT_EQ(advice.find("--host-memory"), std::string::npos) << advice;
}

TEST(Remedies, AreAdvisedTogetherUnlessOneTakesTheOtherBack) {
  using enum RemedyKind;
  EXPECT_TRUE(exclude_each_other(batches, batches));
  EXPECT_TRUE(exclude_each_other(checkpointing, parts));
  EXPECT_FALSE(exclude_each_other(checkpointing, batches));
  EXPECT_FALSE(exclude_each_other(batches, parts));
}

}  // namespace
}  // namespace spillway::engine::remedies_test
