// What "auto" becomes: chosen by the model and by what fits, said in a line, kept on resume.
#include "runtime/engine/prepare/automatic.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>
#include <variant>

#include "runtime/base/error.hpp"
#include "runtime/engine/prepare/place.hpp"
#include "runtime/engine/prepare/resolve.hpp"
#include "runtime/engine/prepare/workload.hpp"
#include "runtime/plan/search/choose.hpp"
#include "tests/model/tiny_models.hpp"

namespace spillway::engine::automatic_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Chosen {
  config::TrainOptions options;
  std::vector<std::string> lines;
};

Chosen choose(std::string_view file, std::string_view stored, Bytes device = 1_GiB) {
  model::ModelConfig config = model::tiny_gpt2();
  config.source_json = stored;
  Chosen chosen{.options = config::parse_train_config(file, "auto.json").options, .lines = {}};
  chosen.options.device = config::DeviceKind::host;
  resolve(chosen.options, config);
  chosen.lines = choose_automatic(
      chosen.options, config, {}, [&](const config::TrainOptions&, const plan::Workload&) {
        return plan::Budgets{.device = device, .host = 1_GiB, .nvme = 1_GiB};
      });
  config::AutomaticOptions open;  // until rates are known
  open.rounds = chosen.options.automatic.rounds;
  open.micro_batch = chosen.options.automatic.micro_batch;
  EXPECT_EQ(chosen.options.automatic, open);
  return chosen;
}

constexpr std::string_view kBf16Auto = R"({"bf16": {"enabled": "auto"}})";

TEST(Automatic, TheComputeTypeIsTheModels) {
  const Chosen bf16 = choose(kBf16Auto, R"({"torch_dtype": "bfloat16"})");
  EXPECT_EQ(bf16.options.compute, DType::bf16);
  EXPECT_EQ(bf16.options.state_format, StateFormat::split);
  EXPECT_THAT(bf16.lines, ElementsAre(HasSubstr("compute is bf16, the type of the model")));
  const Chosen fp32 = choose(kBf16Auto, R"({"dtype": "float32"})");
  EXPECT_EQ(fp32.options.compute, DType::fp32);
  EXPECT_THAT(fp32.lines, ElementsAre(HasSubstr("compute is fp32, the type of the model")));
  EXPECT_EQ(choose(kBf16Auto, R"({"dtype": "float16"})").options.compute, DType::bf16);
  EXPECT_EQ(choose(R"({"fp16": {"enabled": "auto"}})", R"({"dtype": "float16"})").options.compute,
            DType::fp16);
  const Chosen unsaid = choose(kBf16Auto, "{}");
  EXPECT_EQ(unsaid.options.compute, DType::bf16);
  EXPECT_THAT(unsaid.lines, ElementsAre(HasSubstr("names no type")));
}

TEST(Automatic, TheMicroBatchIsTheLargestThatFits) {
  const std::string file = R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": "auto",
                               "gradient_accumulation_steps": "auto"})";
  const Chosen roomy = choose(file, "{}");
  EXPECT_EQ(roomy.options.micro_batch, 8U);  // 16 does not divide 24
  EXPECT_EQ(roomy.options.gradient_accumulation_steps, 3U);
  EXPECT_THAT(roomy.lines, ElementsAre(HasSubstr("for 24 windows a step (train_batch_size)")));
  // Less device memory, down to where nothing fits: never a larger one, and always 24 windows.
  std::uint32_t last = 8;
  for (std::uint64_t kib = 4096; kib >= 16; kib /= 2) {
    const config::TrainOptions tight = choose(file, "{}", Bytes{kib << 10}).options;
    EXPECT_LE(tight.micro_batch, last);
    EXPECT_EQ(tight.micro_batch * tight.gradient_accumulation_steps, 24U);
    last = tight.micro_batch;
  }
  EXPECT_EQ(last, 1U);
}

TEST(Automatic, AStepHasTheTokensThatAreAskedFor) {
  const std::string context = std::to_string(model::tiny_gpt2().max_context);
  const config::TrainOptions both =
      choose(R"({"spillway": {"tokens_per_step": )" + context + "00}}", "{}").options;
  EXPECT_EQ(both.micro_batch * both.gradient_accumulation_steps, 100U);
  const config::TrainOptions given =
      choose(R"({"train_micro_batch_size_per_gpu": 5, "spillway": {"tokens_per_step": )" + context +
                 "00}}",
             "{}")
          .options;
  EXPECT_EQ(given.micro_batch, 5U);
  EXPECT_EQ(given.gradient_accumulation_steps, 20U);
  const config::TrainOptions neither =
      choose(R"({"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"})",
             "{}")
          .options;
  EXPECT_EQ(neither.micro_batch, 8U);
  EXPECT_EQ(neither.gradient_accumulation_steps, 1U);
}

TEST(Automatic, RoundsAreOpenWhereTheFileSaysSoOrLeavesMicroBatchesOpenToo) {
  const auto open = [](std::string_view text) {
    return config::parse_train_config(text, "t").options.automatic.rounds;
  };
  EXPECT_FALSE(open("{}"));
  EXPECT_FALSE(open(R"({"gradient_accumulation_steps": 8})"));
  EXPECT_FALSE(open(R"({"train_micro_batch_size_per_gpu": "auto", "train_batch_size": 32,
                        "gradient_accumulation_steps": 8})"));
  EXPECT_TRUE(open(R"({"gradient_accumulation_steps": 8, "spillway": {"rounds": "auto"}})"));
  EXPECT_TRUE(open(R"({"train_micro_batch_size_per_gpu": "auto", "train_batch_size": 32})"));
  EXPECT_TRUE(open(R"({"spillway": {"tokens_per_step": 65536}})"));
  EXPECT_FALSE(open(R"({"spillway": {"tokens_per_step": 65536, "rounds": 1}})"));
}

TEST(Automatic, RoundsStayOpenAndTheMicroBatchMayFitWithAnyNumberOfThem) {
  const std::string file = R"({"train_batch_size": 16, "train_micro_batch_size_per_gpu": "auto",
                               "gradient_accumulation_steps": "auto",
                               "spillway": {"activations": "device", "rounds": )";
  model::ModelConfig config = model::tiny_gpt2();
  std::uint32_t larger = 0;
  for (std::uint64_t kib = 4096; kib >= 16; kib -= kib / 4) {
    const auto chosen = [&](const char* rounds) {
      config::TrainOptions options =
          config::parse_train_config(file + rounds + "}}", "auto.json").options;
      options.device = config::DeviceKind::host;
      resolve(options, config);
      const plan::Budgets budgets{.device = Bytes{kib << 10}, .host = 1_GiB, .nvme = 1_GiB};
      std::ignore = choose_automatic(
          options, config, {},
          [&](const config::TrainOptions&, const plan::Workload&) { return budgets; });
      return options;
    };
    const config::TrainOptions one = chosen("1"), open = chosen("\"auto\"");
    EXPECT_TRUE(open.automatic.rounds && open.automatic.micro_batch);
    EXPECT_FALSE(one.automatic.rounds || one.automatic.micro_batch);
    EXPECT_EQ(open.rounds, 1U);
    EXPECT_GE(open.micro_batch, one.micro_batch);
    larger += open.micro_batch > one.micro_batch ? 1 : 0;
  }
  EXPECT_GT(larger, 0U);
}

/// A rank alone may stream its parameters; one of several that share nothing out has them all.
TEST(Automatic, TheMicroBatchFitsARankAmongOthers) {
  const model::ModelConfig config = model::tiny_gpt2();
  const plan::Replicas two{.count = 2};
  std::uint32_t smaller = 0;
  for (std::uint64_t kib = 4096; kib >= 16; kib -= kib / 8) {
    const plan::Budgets budgets{.device = Bytes{kib << 10}, .host = 1_GiB, .nvme = 1_GiB};
    const auto chosen = [&](const plan::Replicas& replicas) {
      config::TrainOptions options =
          config::parse_train_config(
              R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": "auto",
                  "gradient_accumulation_steps": "auto", "spillway": {"rounds": 1}})",
              "auto.json")
              .options;
      options.device = config::DeviceKind::host;
      resolve(options, config);
      std::ignore = choose_automatic(
          options, config, replicas,
          [&](const config::TrainOptions&, const plan::Workload&) { return budgets; });
      return options;
    };
    const auto fits_two = [&](config::TrainOptions options, std::uint32_t micro_batch) {
      options.gradient_accumulation_steps *= options.micro_batch / micro_batch;
      options.micro_batch = micro_batch;
      return std::holds_alternative<plan::Placement>(plan::choose_placement(
          make_workload(config, options, two), budgets, placement_request(options)));
    };
    const config::TrainOptions among = chosen(two);
    EXPECT_TRUE(fits_two(among, among.micro_batch) || !fits_two(among, 1)) << kib;
    smaller += among.micro_batch < chosen({}).micro_batch ? 1U : 0U;
  }
  EXPECT_GT(smaller, 0U);
}

TEST(Resolve, RefusesAContextThatIsTooLongForTheModel) {
  const model::ModelConfig config = model::tiny_gpt2();
  config::TrainOptions options;
  options.device = config::DeviceKind::host;
  options.context = 40;
  EXPECT_NO_THROW(resolve(options, config));
  options.context = 41;
  EXPECT_THAT([&] { resolve(options, config); },
              testing::ThrowsMessage<Error>(HasSubstr("use at most 40")));
}

TEST(Automatic, AResumedRunKeepsWhatItChose) {
  config::TrainOptions recorded;
  recorded.micro_batch = 2;
  recorded.rounds = 4;
  recorded.gradient_accumulation_steps = 12;
  recorded.compute = DType::bf16;
  recorded.state_format = StateFormat::split;
  config::TrainOptions now =
      config::parse_train_config(R"({"train_batch_size": 24, "bf16": {"enabled": "auto"},
                                            "train_micro_batch_size_per_gpu": "auto",
                                            "spillway": {"rounds": "auto"}})",
                                 "auto.json")
          .options;
  take_automatic(now, recorded);
  EXPECT_EQ(now.micro_batch, 2U);
  EXPECT_EQ(now.rounds, 4U);
  EXPECT_EQ(now.gradient_accumulation_steps, 12U);
  EXPECT_EQ(now.compute, DType::bf16);
  EXPECT_EQ(now.state_format, StateFormat::split);
  EXPECT_EQ(now.automatic, config::AutomaticOptions{});
}

}  // namespace
}  // namespace spillway::engine::automatic_test
