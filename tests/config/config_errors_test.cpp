// What a configuration is refused for: everything at once, with suggestions only where they help.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/config/config_test_support.hpp"

namespace spillway::config::config_errors_test {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string refusal(std::string_view text) { return test::parse_error(text).what(); }

TEST(ConfigErrors, AllAreToldAtOnce) {
  const std::string told = refusal(R"({
    "train_micro_batch_size_per_gpu": 0,
    "gradient_clipping": -1,
    "fp16": {"enabled": 3},
    "optimizer": {"type": "Lamb", "params": {"lr": 1e-3, "betas": 4}},
    "zero_optimization": {"stage": 7, "overlap_com": true},
    "amp": {"enabled": true},
    "spillway": {"order": "backwards", "prefetch": "many", "seeed": 3},
    "colour": "red"
  })");
  EXPECT_THAT(told, testing::StartsWith("test.json: 12 errors\n"));
  for (const char* const each :
       {"\n  train_micro_batch_size_per_gpu is 0;", "\n  gradient_clipping is -1;",
        "\n  fp16.enabled is 3;", "\n  optimizer.type is \"Lamb\";",
        "\n  optimizer.params.betas is 4;", "\n  zero_optimization.stage is 7;",
        "\n  amp is a feature that DeepSpeed", "\n  spillway.order is \"backwards\";",
        "\n  spillway.prefetch is \"many\";", "\n  unknown key zero_optimization.overlap_com; ",
        "\n  unknown key spillway.seeed; ", "\n  unknown key colour"}) {
    EXPECT_THAT(told, HasSubstr(each));
  }
  // The rest of a section that was given up is not called unknown.
  EXPECT_THAT(told, Not(HasSubstr("unknown key optimizer")));
  EXPECT_THAT(told, Not(HasSubstr("unknown key fp16")));
}

TEST(ConfigErrors, APathIsNoKey) {
  EXPECT_EQ(refusal(R"({"optimizer.params.lr": 1})"), "test.json: unknown key optimizer.params.lr");
  EXPECT_EQ(refusal(R"({"zero_optimization.offload_param": {"device": "cpu"}})"),
            "test.json: unknown key zero_optimization.offload_param");
}

TEST(ConfigErrors, AKeyOfTheWrongKindHarmsNoOther) {
  EXPECT_EQ(refusal(R"({"optimizer": {"type": 3, "params": {"adam_w_mode": false}}})"),
            "test.json: optimizer.type is 3; write a text, \"...\"");
}

TEST(ConfigErrors, ValuesThatFlagsMaySetAreToldAtOnceToo) {
  TrainOptions options;
  options.gradient_clipping = -1;
  options.adam.beta1 = 2;
  options.rounds = 0;
  const Error error = test::validate_error(options);
  EXPECT_THAT(error.what(), HasSubstr("has 3 errors\n"));
  for (const char* const each :
       {"gradient_clipping is -1", "betas holds 2", "spillway.rounds is 0"}) {
    EXPECT_THAT(error.what(), HasSubstr(each));
  }
}

TEST(ConfigErrors, SuggestionsAreNearOrNone) {
  const auto suggested = [](std::string_view text) {
    const std::string told = refusal(text);
    const std::string before = "the nearest known key is ";
    const auto at = told.find(before);
    return at == std::string::npos ? std::string("nothing") : told.substr(at + before.size());
  };
  EXPECT_EQ(suggested(R"({"learning_rate": 1})"), "optimizer.params.lr");
  EXPECT_EQ(suggested(R"({"optimizer": {"params": {"learning_rate": 1}}})"), "optimizer.params.lr");
  EXPECT_EQ(suggested(R"({"batch_size": 1})"), "train_micro_batch_size_per_gpu");
  EXPECT_EQ(suggested(R"({"max_steps": 1})"), "spillway.steps");
  EXPECT_EQ(suggested(R"({"lr_scheduler_type": "cosine"})"), "scheduler.type");
  EXPECT_EQ(suggested(R"({"wall_clock_breakdow": true})"), "wall_clock_breakdown");
  EXPECT_EQ(suggested(R"({"spillway": {"warmup_num_steps": 3}})"),
            "scheduler.params.warmup_num_steps");
  EXPECT_EQ(suggested(R"({"colour": "red"})"), "nothing");
  EXPECT_EQ(suggested(R"({"optimizer": {"params": {"zebra": 1}}})"), "nothing");
  EXPECT_EQ(suggested(R"({"spillway": {"x": 1}})"), "nothing");
}

}  // namespace
}  // namespace spillway::config::config_errors_test
