// One rule of the configuration a test: what is accepted, and what it means.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/config/config_test_support.hpp"

namespace spillway::config::config_read_test {
namespace {

using test::options_of;
using test::parse_error;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> notes_of(std::string_view text) {
  return parse_train_config(text, "test.json").notes;
}

TEST(ConfigRead, AnEmptyObjectIsACompleteConfiguration) {
  const ParsedConfig parsed = parse_train_config("{}", "test.json");
  validate(parsed.options);
  EXPECT_THAT(parsed.notes, testing::SizeIs(3)) << "what HF Trainer or DeepSpeed does otherwise";
  EXPECT_EQ(parsed.options.gradient_clipping, 1.0);
  EXPECT_EQ(parsed.options.compute, DType::fp32);
  EXPECT_EQ(parsed.options.state_format, StateFormat::fp32);
  EXPECT_EQ(parsed.options.decay, DecayScope::matrices);
  EXPECT_EQ(parsed.options.rounds, 1U);
  EXPECT_EQ(parsed.options.schedule.kind, ScheduleKind::constant);
}

TEST(ConfigRead, CommentsStandAnywhereButInStrings) {
  EXPECT_EQ(options_of("# first\n{//x\n/* \" */\"spillway\"/**/:{\"seed\":#{\n7}//}\n}# last").seed,
            7U);
  const TrainOptions options = options_of(
      R"({"spillway": {"nvme": ["/a//b", "/c#d", "/e/*f*/", "/g\"//h", "/i\\"]} // end
          })");
  EXPECT_THAT(options.nvme, ElementsAre("/a//b", "/c#d", "/e/*f*/", "/g\"//h", "/i\\"));
}

TEST(ConfigRead, ACommentThatNeverEndsIsNamedByItsLine) {
  EXPECT_THAT(parse_error("{\n/* \"seed\": 1}").what(),
              HasSubstr("the comment that starts at line 2 never ends"));
  EXPECT_THAT(parse_error("\n/* {}").what(), HasSubstr("that starts at line 2 never ends"));
}

TEST(ConfigRead, SyntaxErrorsKeepTheirPlaceBehindComments) {
  const Error error = parse_error("{ /* a\n b */ # c\n  \"spillway\" 1 }");
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), HasSubstr("test.json: not JSON"));
  EXPECT_THAT(error.what(), HasSubstr("line 3, column 14"));
  for (const char* const text :
       {"", "[]", "3", "{", "{\"a\"}", "nonsense", "{} {}", "{\"a\": 1e999}", "{\"a\": NaN}", "{,}",
        "\xff", "{\"\xff\": 1}"}) {
    EXPECT_EQ(parse_error(text).code(), ErrorCode::invalid_argument) << text;
  }
}

TEST(ConfigRead, ADuplicateKeyIsRefusedWithItsPath) {
  EXPECT_THAT(parse_error(R"({"fp16": {"enabled": true, "enabled": true}})").what(),
              HasSubstr("key fp16.enabled stands twice"));
  EXPECT_THAT(parse_error(R"({"bf16": {"enabled": true}, "fp16": {}, "bf16": {}})").what(),
              HasSubstr("key bf16 stands twice"));
  EXPECT_THAT(parse_error(R"({"aio": {"a": [{"b": 1}, {"b": 1, "b": 2}]}})").what(),
              HasSubstr("key aio.a.b stands twice"));
  EXPECT_THAT(notes_of(R"({"datastates_ckpt": {"a": [{"b": 1}, {"b": 1}]}})"),
              Contains(HasSubstr("datastates_ckpt")));
}

TEST(ConfigRead, DeepNestingIsRefusedAndNotRecursedInto) {
  const std::string deep = "{\"aio\":" + std::string(200000, '[') + std::string(200000, ']') + "}";
  EXPECT_THAT(parse_error(deep).what(), HasSubstr("nested deeper than 64"));
}

TEST(ConfigRead, AnUnknownKeyIsRefusedWithTheNearestOne) {
  const struct {
    const char* text;
    const char* unknown;
    const char* nearest;
  } cases[] = {
      {R"({"train_micro_batch_size": 4})", "train_micro_batch_size;",
       "train_micro_batch_size_per_gpu"},
      {R"({"gradient_cliping": 4})", "gradient_cliping;", "gradient_clipping"},
      {R"({"zero_optimization": {"offload_optimzer": {}}})", "zero_optimization.offload_optimzer;",
       "zero_optimization.offload_optimizer"},
      {R"({"zero_optimization": {"offload_optimizer": {"nvme_paht": ""}}})",
       "zero_optimization.offload_optimizer.nvme_paht;",
       "zero_optimization.offload_optimizer.nvme_path"},
      {R"({"optimizer": {"params": {"bets": []}}})", "optimizer.params.bets;",
       "optimizer.params.betas"},
      {R"({"scheduler": {"type": "WSD", "params": {"decay_steps": 5}}})",
       "scheduler.params.decay_steps;", "scheduler.params.decay_num_steps"},
      {R"({"spillway": {"comit_every": 5}})", "spillway.comit_every;", "spillway.commit_every"},
      {R"({"fp16": {"Enabled": true}})", "fp16.Enabled;", "fp16.enabled"},
      // In a section that Spillway does not need.
      {R"({"aio": {"blok_size": 1}})", "aio.blok_size;", "aio.block_size"},
      {R"({"timers": {"throughput": {"enable": true}}})", "timers.throughput.enable;",
       "timers.throughput.enabled"},
      // In the wrong section: the right one is named.
      {R"({"seed": 5})", "seed;", "spillway.seed"},
      {R"({"optimizer": {"lr": 5}})", "optimizer.lr;", "optimizer.params.lr"},
      {R"({"spillway": {"gradient_clipping": 5}})", "spillway.gradient_clipping;",
       "gradient_clipping"},
  };
  for (const auto& each : cases) {
    const Error error = parse_error(each.text);
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(std::string(error.what()), std::string("test.json: unknown key ") + each.unknown +
                                             " the nearest known key is " + each.nearest);
  }
}

TEST(ConfigRead, BatchSizesFollowDeepSpeedsIdentity) {
  const auto batch = [](std::string_view text, std::uint32_t ranks) {
    const TrainOptions options = parse_train_config(text, "t", ranks).options;
    return std::pair{options.micro_batch, options.gradient_accumulation_steps};
  };
  using Batch = std::pair<std::uint32_t, std::uint32_t>;
  EXPECT_EQ(batch(R"({"train_batch_size": 32})", 1), Batch(32, 1));
  EXPECT_EQ(batch(R"({"train_batch_size": 32})", 4), Batch(8, 1));
  EXPECT_EQ(batch(R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4})", 2),
            Batch(4, 4));
  EXPECT_EQ(batch(R"({"train_batch_size": 32, "gradient_accumulation_steps": 4})", 2), Batch(4, 4));
  EXPECT_EQ(batch(R"({"train_micro_batch_size_per_gpu": 3})", 2), Batch(3, 1));
  EXPECT_EQ(batch(R"({"gradient_accumulation_steps": 5})", 2), Batch(1, 5));
  EXPECT_EQ(batch(R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4,
                      "gradient_accumulation_steps": 8})",
                  1),
            Batch(4, 8));
  EXPECT_EQ(batch(R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 4,
                      "gradient_accumulation_steps": "auto"})",
                  1),
            Batch(4, 1));
  EXPECT_EQ(batch(R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": "auto",
                      "gradient_accumulation_steps": 8})",
                  1),
            Batch(4, 8));
}

TEST(ConfigRead, AMicroBatchThatIsChosenLaterLeavesEachRankItsWindows) {
  const AutomaticOptions automatic =
      parse_train_config(R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": "auto",
                             "gradient_accumulation_steps": "auto"})",
                         "t", 4)
          .options.automatic;
  EXPECT_TRUE(automatic.micro_batch);
  EXPECT_EQ(automatic.windows, 8U);
}

TEST(ConfigRead, BatchSizesThatContradictAreRefused) {
  EXPECT_THAT(parse_error(R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4,
                              "gradient_accumulation_steps": 4})")
                  .what(),
              HasSubstr("train_batch_size 32 is not train_micro_batch_size_per_gpu 4 x "
                        "gradient_accumulation_steps 4 x 1 rank(s)"));
  EXPECT_THAT(parse_error(R"({"train_batch_size": 6, "train_micro_batch_size_per_gpu": 4})").what(),
              HasSubstr("not a multiple of train_micro_batch_size_per_gpu 4"));
  EXPECT_THAT(parse_error(R"({"train_batch_size": 6, "gradient_accumulation_steps": 4})").what(),
              HasSubstr("not a multiple of gradient_accumulation_steps 4"));
  EXPECT_THROW(static_cast<void>(parse_train_config(R"({"train_batch_size": 6})", "t", 4)), Error);
}

TEST(ConfigRead, LossScaleZeroIsDynamicAndAnythingElseIsNot) {
  EXPECT_TRUE(options_of(R"({"fp16": {"enabled": true, "loss_scale": 0}})").loss_scale.dynamic);
  EXPECT_TRUE(options_of(R"({"fp16": {"enabled": true}})").loss_scale.dynamic);
  const LossScaleOptions fixed =
      options_of(R"({"fp16": {"enabled": true, "loss_scale": 128, "initial_scale_power": 20}})")
          .loss_scale;
  EXPECT_FALSE(fixed.dynamic);
  EXPECT_EQ(fixed.initial, 128);
  const LossScaleOptions dynamic =
      options_of(R"({"fp16": {"enabled": true, "initial_scale_power": 32, "loss_scale_window": 50,
                     "hysteresis": 4, "min_loss_scale": 8, "consecutive_hysteresis": true}})")
          .loss_scale;
  EXPECT_EQ(dynamic.initial, 0x1p32);
  EXPECT_EQ(dynamic.window, 50U);
  EXPECT_EQ(dynamic.hysteresis, 4U);
  EXPECT_EQ(dynamic.minimum, 8);
  EXPECT_TRUE(dynamic.consecutive_hysteresis);
}

TEST(ConfigRead, ComputeTypeHasOneSource) {
  EXPECT_EQ(options_of(R"({"spillway": {"compute": "bf16"}})").compute, DType::bf16);
  EXPECT_EQ(options_of(R"({"bf16": {"enabled": true}})").compute, DType::bf16);
  EXPECT_EQ(options_of(R"({"bfloat16": {"enabled": true}})").compute, DType::bf16);
  EXPECT_EQ(options_of(R"({"bf16": {"enabled": false}, "fp16": {"enabled": false},
                           "spillway": {"compute": "fp16"}})")
                .compute,
            DType::fp16);
  EXPECT_EQ(options_of(R"({"bf16": {"enabled": true}, "spillway": {"compute": "bf16"}})").compute,
            DType::bf16);
  EXPECT_THAT(parse_error(R"({"bf16": {"enabled": true}, "fp16": {"enabled": true}})").what(),
              HasSubstr("fp16.enabled and bf16.enabled are both true"));
  EXPECT_THAT(parse_error(R"({"bf16": {"enabled": true}, "spillway": {"compute": "fp32"}})").what(),
              HasSubstr("spillway.compute is \"fp32\""));
}

TEST(ConfigRead, OtherOptimizersHaveTorchsNamesAndDefaults) {
  using cpu_adam::DecayMode;
  using cpu_adam::Optimizer;
  const auto adam = [](const std::string& optimizer) {
    return options_of(R"({"optimizer": )" + optimizer + "}").adam;
  };
  const auto sgd = adam(R"({"type": "sgd", "params": {"momentum": 0.9, "weight_decay": 0.1}})");
  EXPECT_EQ(sgd.optimizer, Optimizer::sgd);
  EXPECT_EQ(sgd.decay_mode, DecayMode::l2);
  EXPECT_EQ(sgd.beta1, 0.9);
  EXPECT_EQ(adam(R"({"type": "SGD"})").beta1, 0);
  const auto lion = adam(R"({"type": "Lion"})");
  EXPECT_EQ(lion.optimizer, Optimizer::lion);
  EXPECT_EQ(lion.decay_mode, DecayMode::decoupled);
  EXPECT_EQ(lion.beta2, 0.999);  // as DeepSpeed has it; the paper has 0.99
  const auto adagrad = adam(R"({"type": "Adagrad"})");
  EXPECT_EQ(adagrad.optimizer, Optimizer::adagrad);
  EXPECT_EQ(adagrad.decay_mode, DecayMode::l2);
  EXPECT_EQ(adagrad.eps, 1e-10);
  EXPECT_EQ(adagrad.lr, 1e-2);
  EXPECT_EQ(options_of(R"({"optimizer": {"type": "Adagrad"}})").schedule.peak_lr, 1e-2);
}

TEST(ConfigRead, AdamMeansAdamWUnlessItSaysOtherwise) {
  using cpu_adam::DecayMode;
  const auto mode = [](std::string_view optimizer) {
    return options_of("{\"optimizer\": " + std::string(optimizer) + "}").adam.decay_mode;
  };
  EXPECT_EQ(mode(R"({"type": "Adam"})"), DecayMode::decoupled);
  EXPECT_EQ(mode(R"({"type": "adam", "params": {"adam_w_mode": true}})"), DecayMode::decoupled);
  EXPECT_EQ(mode(R"({"type": "Adam", "params": {"adam_w_mode": false}})"), DecayMode::l2);
  EXPECT_EQ(mode(R"({"type": "AdamW"})"), DecayMode::decoupled);
  EXPECT_EQ(mode(R"({"type": "AdamW", "params": {"adam_w_mode": false}})"), DecayMode::decoupled);
  EXPECT_THAT(notes_of(R"({"optimizer": {"type": "AdamW", "params": {"adam_w_mode": false}}})"),
              Contains(HasSubstr("adam_w_mode: ignored")));
  for (const char* const type : {"Lamb", "OneBitAdam", "Muon"}) {
    const Error error = parse_error(std::string(R"({"optimizer": {"type": ")") + type + "\"}}");
    EXPECT_EQ(error.code(), ErrorCode::not_supported);
    EXPECT_THAT(error.what(), HasSubstr(type));
  }
  EXPECT_THAT(parse_error(R"({"optimizer": {"params": {"max_grad_norm": 1}}})").what(),
              HasSubstr("write gradient_clipping at the top level"));
}

TEST(ConfigRead, FeaturesThatChangeTheMathematicsMustBeOff) {
  for (const char* const on :
       {R"({"torch_autocast": {"enabled": true}})", R"({"data_efficiency": {"enabled": true}})",
        R"({"weight_quantization": {"shared": {"enabled": true}}})",
        R"({"fp16": {"fp16_master_weights_and_grads": true}})",
        R"({"optimizer": {"params": {"amsgrad": true}}})",
        R"({"optimizer": {"params": {"fp32_optimizer_states": false}}})",
        R"({"zero_optimization": {"zero_quantized_gradients": true}})"}) {
    EXPECT_EQ(parse_error(on).code(), ErrorCode::not_supported) << on;
  }
  for (const char* const off :
       {R"({"torch_autocast": {"enabled": false, "dtype": "bfloat16"}})",
        R"({"torch_autocast": {"enabled": "auto"}})", R"({"torch_autocast": null})",
        R"({"weight_quantization": {"shared": {"enabled": false, "schedule_offset": 0}}})",
        R"({"amp": null})", R"({"sparse_attention": null})",
        R"({"fp16": {"fp16_master_weights_and_grads": false}})",
        R"({"optimizer": {"params": {"amsgrad": false, "fp32_optimizer_states": true}}})"}) {
    EXPECT_NO_THROW(static_cast<void>(options_of(off))) << off;
  }
}

TEST(ConfigRead, OffloadTargetsBecomeHomes) {
  const auto home = [](std::string_view zero) {
    return options_of("{\"zero_optimization\": " + std::string(zero) + "}").state_home;
  };
  EXPECT_EQ(home("{}"), StateHome::automatic);
  EXPECT_EQ(home(R"({"cpu_offload": true})"), StateHome::host);
  EXPECT_EQ(home(R"({"cpu_offload": true, "offload_optimizer": {"device": "nvme"}})"),
            StateHome::nvme);
  EXPECT_EQ(home(R"({"offload_optimizer": {"device": "none"}})"), StateHome::device);
  EXPECT_EQ(home(R"({"offload_optimizer": {}})"), StateHome::automatic);
  EXPECT_THAT(
      parse_error(R"({"zero_optimization": {"offload_optimizer": {"device": "gpu"}}})").what(),
      HasSubstr("offload_optimizer.device is \"gpu\"; write one of none, cpu, nvme"));
  const char* const unused = R"({"zero_optimization": {"offload_optimizer":
                                 {"device": "cpu", "nvme_path": "/x"}}})";
  EXPECT_THAT(options_of(unused).nvme, IsEmpty());
  EXPECT_THAT(notes_of(unused), Contains(HasSubstr("nvme_path: ignored")));
}

TEST(ConfigRead, CpuCheckpointingMeansActivationsOnTheHostUnlessAskedOtherwise) {
  const auto home = [](std::string_view text) { return options_of(text).activations; };
  EXPECT_EQ(home("{}"), StateHome::automatic);
  EXPECT_EQ(home(R"({"activation_checkpointing": {"cpu_checkpointing": false}})"),
            StateHome::automatic);
  EXPECT_EQ(home(R"({"activation_checkpointing": {"cpu_checkpointing": true}})"), StateHome::host);
  EXPECT_EQ(home(R"({"activation_checkpointing": {"cpu_checkpointing": true},
                     "spillway": {"activations": "nvme"}})"),
            StateHome::nvme);
  EXPECT_THAT(parse_error(R"({"spillway": {"activations": "disk"}})").what(),
              HasSubstr("activations is \"disk\"; write one of auto, device, host, nvme"));
}

TEST(ConfigRead, OffloadParamCountsFromStageThreeOn) {
  const auto residency = [](const char* stage, const char* device) {
    return options_of(std::string(R"({"zero_optimization": {"stage": )") + stage +
                      R"(, "offload_param": {"device": ")" + device + "\"}}}")
        .residency;
  };
  EXPECT_EQ(residency("2", "cpu"), Residency::automatic);
  EXPECT_EQ(residency("3", "cpu"), Residency::none);
  EXPECT_EQ(residency("3", "nvme"), Residency::none);
  EXPECT_EQ(residency("3", "none"), Residency::automatic);
  EXPECT_THAT(parse_error(R"({"zero_optimization": {"offload_param": {"device": "disk"}}})").what(),
              HasSubstr("offload_param.device is \"disk\""));
  const auto of_old_name = [](const char* zero) {
    return options_of(std::string(R"({"zero_optimization": )") + zero + "}").residency;
  };
  EXPECT_EQ(of_old_name(R"({"stage": 2, "cpu_offload_param": true})"), Residency::automatic);
  EXPECT_EQ(of_old_name(R"({"stage": 3, "cpu_offload_param": true})"), Residency::none);
  EXPECT_EQ(of_old_name(R"({"stage": 3, "cpu_offload_param": false})"), Residency::automatic);
}

TEST(ConfigRead, TheSpillwaySectionOverridesWhatDeepSpeedsKeysSay) {
  const TrainOptions options = options_of(R"({
      "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"},
                            "offload_optimizer": {"device": "nvme", "nvme_path": "/a"}},
      "spillway": {"residency": "all", "state_home": "host", "nvme": ["/b", "/c"],
                   "device_memory": "24GB", "host_memory": 1024, "isa": "avx2"}})");
  EXPECT_EQ(options.residency, Residency::all);
  EXPECT_EQ(options.state_home, StateHome::host);
  EXPECT_THAT(options.nvme, ElementsAre("/b", "/c"));
  EXPECT_EQ(options.device_memory, Bytes{24'000'000'000});
  EXPECT_EQ(options.host_memory, Bytes{1024});
  EXPECT_EQ(options.isa, cpu_adam::Isa::avx2);
  EXPECT_EQ(options_of(R"({"spillway": {"nvme": "/x"}})").state_home, StateHome::nvme);
  EXPECT_EQ(options_of(R"({"spillway": {"isa": "auto"}})").isa, std::nullopt);
}

TEST(ConfigRead, UpdateModesAreReadByName) {
  const TrainOptions delayed =
      options_of(R"({"spillway": {"update": "delayed", "delayed_from": 7}})");
  EXPECT_EQ(delayed.update, UpdateMode::delayed);
  EXPECT_EQ(delayed.delayed_from, 7U);
  EXPECT_EQ(options_of(R"({"spillway": {"update": "speculative"}})").update,
            UpdateMode::speculative);
  EXPECT_EQ(parse_error(R"({"spillway": {"update": "never"}})").code(),
            ErrorCode::invalid_argument);
}

TEST(ConfigRead, ValuesOfTheWrongKindNameKeyValueAndWhatIsAllowed) {
  const struct {
    const char* text;
    const char* expected;
  } cases[] = {
      {R"({"fp16": true})", "fp16 is true; write an object"},
      {R"({"fp16": {"enabled": 1}})", "fp16.enabled is 1; write true or false"},
      {R"({"fp16": {"hysteresis": 0}})", "fp16.hysteresis is 0; write a whole number from 1"},
      {R"({"fp16": {"loss_scale": -1}})", "fp16.loss_scale is -1; write a number from 0"},
      {R"({"fp16": {"initial_scale_power": 101}})", "a whole number from 0 to 100"},
      {R"({"train_batch_size": 1.5})", "train_batch_size is 1.5; write a whole number"},
      {R"({"train_batch_size": "32"})", "train_batch_size is \"32\"; write a whole number"},
      {R"({"train_batch_size": 0})", "train_batch_size is 0; write a whole number from 1"},
      {R"({"train_batch_size": -4})", "train_batch_size is -4; write"},
      {R"({"gradient_clipping": true})", "gradient_clipping is true; write a number"},
      {R"({"optimizer": {"params": {"betas": [0.9]}}})",
       "betas is an array; write an array of two"},
      {R"({"optimizer": {"params": {"betas": [0.9, "x"]}}})", "an array of two numbers"},
      {R"({"optimizer": {"type": 3}})", "optimizer.type is 3; write a text"},
      {R"({"scheduler": {"params": {}}})", "scheduler.type is missing"},
      {R"({"scheduler": {"type": "Exponential"}})", "scheduler.type is \"Exponential\""},
      {R"({"zero_optimization": {"stage": 4}})", "stage is 4; write a whole number from 0 to 3"},
      {R"({"spillway": {"order": "random"}})", "is \"random\"; write one of shuffled, sequential"},
      {R"({"spillway": {"device_memory": "lots"}})",
       "spillway.device_memory is \"lots\"; write a size"},
      {R"({"spillway": {"nvme": [1]}})", "a path or an array of paths"},
      {R"({"spillway": {"disk_gbps": {}}})", "spillway.disk_gbps is an object; write a number"},
      {R"({"spillway": []})", "spillway is an array; write an object"},
  };
  for (const auto& each : cases) {
    const Error error = parse_error(each.text);
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << each.text;
    EXPECT_THAT(error.what(), HasSubstr(each.expected));
  }
}

TEST(ConfigRead, WholeNumbersMayBeSpelledAsFloats) {
  EXPECT_EQ(options_of(R"({"spillway": {"steps": 2e3, "seed": 7.0}})").steps, 2000U);
}

TEST(ConfigRead, NullIsAbsent) {
  EXPECT_NO_THROW(validate(options_of(
      R"({"fp16": null, "optimizer": {"params": {"lr": null}}, "scheduler": null,
          "zero_optimization": {"offload_optimizer": {"nvme_path": null}},
          "spillway": {"isa": null}})")));
}

}  // namespace
}  // namespace spillway::config::config_read_test
