// What stands for absent keys, and which of it DeepSpeed or HF Trainer would take otherwise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "tests/config/config_test_support.hpp"

namespace spillway::config::config_defaults_test {
namespace {

using test::options_of;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> notes_of(std::string_view text) {
  return parse_train_config(text, "test.json").notes;
}

TEST(ConfigDefaults, WithoutAnOptimizerTheTrainersIsTaken) {
  const auto [options, notes] = parse_train_config(R"({"bf16": {"enabled": true}})", "test.json");
  EXPECT_EQ(options.adam.lr, 5e-5);
  EXPECT_EQ(options.schedule.peak_lr, 5e-5);
  EXPECT_EQ(options.adam.optimizer, cpu_adam::Optimizer::adam);
  EXPECT_EQ(options.adam.decay_mode, cpu_adam::DecayMode::decoupled);
  EXPECT_THAT(notes, Contains("optimizer: absent: AdamW with lr 5e-05, as HF Trainer's"));
  EXPECT_THAT(notes, Contains(HasSubstr("scheduler: absent: a constant rate; HF Trainer's")));
  EXPECT_EQ(options_of(R"({"optimizer": {"type": "AdamW"}})").adam.lr, 1e-3) << "as DeepSpeed's";
}

TEST(ConfigDefaults, DefaultsThatDeepSpeedHasOtherwiseAreSaid) {
  const auto about = [](std::string_view key, const std::string& text) {
    std::vector<std::string> found = notes_of(text);
    std::erase_if(found, [&](const std::string& note) { return !note.starts_with(key); });
    return found;
  };
  EXPECT_THAT(about("gradient_clipping", "{}"), testing::SizeIs(1));
  EXPECT_THAT(about("gradient_clipping", R"({"gradient_clipping": 0})"), IsEmpty());
  const auto decayed = [](const char* decay, const char* scope) {
    return std::string(R"({"optimizer": {"params": {"weight_decay": )") + decay +
           R"(}}, "spillway": {)" + scope + "}}";
  };
  EXPECT_THAT(about("spillway.decay", decayed("0.1", "")),
              Contains(HasSubstr("DeepSpeed decays all parameters")));
  EXPECT_THAT(about("spillway.decay", decayed("0.1", R"("decay": "matrices")")), IsEmpty());
  EXPECT_THAT(about("spillway.decay", decayed("0", "")), IsEmpty());
}

TEST(ConfigDefaults, AnAutoInPlaceOfAnArrayIsSaidAndOneInsideIsRefused) {
  EXPECT_THAT(notes_of(R"({"optimizer": {"params": {"betas": "auto"}}})"),
              Contains("optimizer.params.betas: \"auto\" is [0.9,0.999]"));
  for (const char* const betas : {R"(["auto", "auto"])", R"([0.9, "auto"])"}) {
    const std::string text = R"({"optimizer": {"params": {"betas": )" + std::string(betas) + "}}}";
    EXPECT_THAT(test::parse_error(text).what(),
                HasSubstr("betas holds \"auto\"; write \"auto\" in place of the whole array"));
  }
}

TEST(ConfigDefaults, KeysThatBeginWithAnUnderscoreAreComments) {
  EXPECT_THAT(notes_of(R"({"_note": "x", "optimizer": {"_why": [1], "type": "AdamW"},
                           "aio": {"_": 1, "block_size": 1}, "gradient_clipping": 1})"),
              testing::ElementsAre(HasSubstr("aio: not needed")));
  EXPECT_THAT(notes_of(R"({"cuda_visible_devices": "0"})"),
              Contains(HasSubstr("cuda_visible_devices: not needed")));
}

}  // namespace
}  // namespace spillway::config::config_defaults_test
