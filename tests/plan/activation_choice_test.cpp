#include "runtime/plan/placement/activation_choice.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "runtime/base/error.hpp"
#include "tests/plan/plan_helpers.hpp"

namespace spillway::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ActivationSetting unit_setting() {
  return {.gpu_flops = 1,
          .h2d = 1,
          .d2h = 1,
          .nvme_read = 1,
          .nvme_write = 1,
          .forward_flops = 100,
          .backward_flops = 200,
          .host_room = Bytes{1'000'000}};
}

TEST(PassSeconds, IsTheSlowestResourceOfEachPass) {
  ActivationSetting setting = unit_setting();
  PassSeconds seconds = pass_seconds(setting, Bytes{0}, 50);
  EXPECT_DOUBLE_EQ(seconds.forward, 100);
  EXPECT_DOUBLE_EQ(seconds.backward, 250);
  seconds = pass_seconds(setting, Bytes{300}, 0);
  EXPECT_DOUBLE_EQ(seconds.forward, 300);   // d2h
  EXPECT_DOUBLE_EQ(seconds.backward, 300);  // h2d
  setting.parameters_up = Bytes{40};
  EXPECT_DOUBLE_EQ(pass_seconds(setting, Bytes{300}, 0).backward, 340);
  setting.update_seconds = 500;
  EXPECT_DOUBLE_EQ(pass_seconds(setting, Bytes{300}, 0).backward, 500);
  setting.gradients_down = Bytes{700};
  EXPECT_DOUBLE_EQ(pass_seconds(setting, Bytes{300}, 0).backward, 700);
  setting.parameters_up = Bytes{900};
  EXPECT_DOUBLE_EQ(pass_seconds(setting, Bytes{0}, 0).forward, 900);
}

TEST(PassSeconds, SpillsWhatTheHostCannotHold) {
  ActivationSetting setting = unit_setting();
  setting.d2h = setting.h2d = 1000;
  setting.nvme_write = 0.1;
  setting.nvme_read = 0.2;
  setting.host_room = Bytes{80};
  const PassSeconds seconds = pass_seconds(setting, Bytes{180}, 0);
  EXPECT_DOUBLE_EQ(seconds.forward, 100 / 0.1);
  EXPECT_DOUBLE_EQ(seconds.backward, 100 / 0.2);
  setting.nvme_write = 0;
  EXPECT_NO_THROW((void)pass_seconds(setting, Bytes{80}, 0));
  EXPECT_THROW((void)pass_seconds(setting, Bytes{81}, 0), Error);
}

TEST(ActivationChoice, OffloadsWhatTheLinkCanCarryForFree) {
  // Forward has room for 100 bytes; each group costs 40 and spares 10.
  const std::vector<ActivationGroup> groups(5, {Bytes{40}, 10});
  const ActivationChoice choice = choose_activations(unit_setting(), groups);
  EXPECT_THAT(choice.offloaded, ElementsAre(0, 1));
  EXPECT_EQ(choice.bytes.value(), 80U);
  EXPECT_DOUBLE_EQ(choice.seconds.total(), 100 + 200 + 3 * 10);
}

TEST(ActivationChoice, TakesTheBestFlopsPerByteFirst) {
  const std::vector<ActivationGroup> groups{
      {Bytes{50}, 5}, {Bytes{50}, 20}, {Bytes{0}, 1}, {Bytes{0}, 0}, {Bytes{10}, 0}};
  const ActivationChoice choice = choose_activations(unit_setting(), groups);
  EXPECT_THAT(choice.offloaded, ElementsAre(2, 1, 0));
}

TEST(ActivationChoice, OffloadsNothingThatGainsNothing) {
  ActivationSetting setting = unit_setting();
  const std::vector<ActivationGroup> groups(3, {Bytes{10}, 5});
  setting.update_seconds = 1000;  // backward waits for the CPU anyway
  EXPECT_THAT(choose_activations(setting, groups).offloaded, IsEmpty());
  EXPECT_THAT(choose_activations(unit_setting(), {}).offloaded, IsEmpty());
}

TEST(ActivationChoiceProperty, TimeIsConvexAndTheChoiceIsItsMinimum) {
  std::mt19937_64 random(property_seed());
  const auto draw = [&random](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  for (int trial = 0; trial < 500; ++trial) {
    SCOPED_TRACE(trial);
    const ActivationSetting setting{.gpu_flops = draw(0.5, 4),
                                    .h2d = draw(0.5, 4),
                                    .d2h = draw(0.5, 4),
                                    .nvme_read = draw(0.1, 2),
                                    .nvme_write = draw(0.1, 2),
                                    .forward_flops = draw(0, 1000),
                                    .backward_flops = draw(0, 2000),
                                    .parameters_up = Bytes{random() % 500},
                                    .gradients_down = Bytes{random() % 500},
                                    .update_seconds = draw(0, 1000),
                                    .host_room = Bytes{random() % 1000}};
    std::vector<ActivationGroup> groups(random() % 20);
    for (ActivationGroup& group : groups) group = {Bytes{1 + random() % 100}, draw(0, 100)};
    const ActivationChoice choice = choose_activations(setting, groups);

    std::sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
      return a.recompute_flops * static_cast<double>(b.bytes.value()) >
             b.recompute_flops * static_cast<double>(a.bytes.value());
    });
    double recompute = 0;
    for (const ActivationGroup& group : groups) recompute += group.recompute_flops;
    std::vector<double> totals{pass_seconds(setting, Bytes{0}, recompute).total()};
    std::vector<double> moved{0};
    Bytes bytes;
    for (const ActivationGroup& group : groups) {
      bytes += group.bytes;
      recompute = std::max(0.0, recompute - group.recompute_flops);
      totals.push_back(pass_seconds(setting, bytes, recompute).total());
      moved.push_back(static_cast<double>(bytes.value()));
    }
    EXPECT_NEAR(choice.seconds.total(), *std::min_element(totals.begin(), totals.end()), 1e-9);
    for (std::size_t i = 1; i + 1 < totals.size(); ++i) {
      const double before = (totals[i] - totals[i - 1]) / (moved[i] - moved[i - 1]);
      const double after = (totals[i + 1] - totals[i]) / (moved[i + 1] - moved[i]);
      EXPECT_LE(before, after + 1e-9) << "at prefix " << i;
    }
  }
}

}  // namespace
}  // namespace spillway::plan
