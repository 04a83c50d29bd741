// What a run starts with: parameters that fp16 cannot hold are refused where they are loaded, and
// commits are as far apart as the disk wants them.
#include "runtime/engine/run/start_values.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/engine/prepare/commit_every.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine::start_values_test {
namespace {

/// Gives ones, and one other value in the last tensor of block 1.
class OneLarge final : public model::ParameterSource {
 public:
  OneLarge(const model::ModelLayout& layout, float value)
      : place_(layout.blocks[1].tensors.back().first.value() + 3), value_(value) {}
  void read(BlockIndex block, ElementCount first, std::span<float> target) const override {
    std::ranges::fill(target, 1.0F);
    const bool here =
        block == BlockIndex{1} && place_ >= first.value() && place_ - first.value() < target.size();
    if (here) target[place_ - first.value()] = value_;
  }

 private:
  std::uint64_t place_;
  float value_;
};

class HeldByFp16 : public testing::Test {
 protected:
  /// Returns why the parameters are refused; empty where they are not.
  [[nodiscard]] std::string refusal(float value, DType compute) const {
    const OneLarge source(layout_, value);
    try {
      HeldParameters(source, layout_, compute).check_all();
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.what();
    }
  }

  const model::ModelLayout layout_ = model::make_layout(tiny_llama());
};

TEST_F(HeldByFp16, IsWhatRoundsToAFiniteNumber) {
  EXPECT_EQ(refusal(65519.9F, DType::fp16), "");
  EXPECT_EQ(refusal(-65504, DType::fp16), "");
  const std::string name = layout_.blocks[1].tensors.back().name;
  EXPECT_EQ(refusal(-65520, DType::fp16),
            name + " has the value -65520, and fp16 holds up to 65504; train in bf16 or fp32");
  for (const float value :
       {7e4F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_EQ(refusal(value, DType::fp16).find(name), 0U) << value;
    EXPECT_EQ(refusal(value, DType::bf16), "");
    EXPECT_EQ(refusal(value, DType::fp32), "");
  }
}

/// The fp32 state of two blocks, 12 bytes a parameter, takes this disk 3 seconds.
TEST(PlannedCommits, TakeATwentiethOfTheTimeForStateThatIsNotOnDisk) {
  plan::BlockShape block;
  block.padded_parameters = ElementCount{kLeafParameters};
  plan::Workload workload;
  workload.blocks.assign(3, block);
  plan::Placement placement;
  for (const plan::Tier tier : {plan::Tier::device, plan::Tier::host, plan::Tier::nvme}) {
    placement.blocks.emplace_back().state = tier;
  }
  plan::MachineProfile machine;
  machine.nvme_write = static_cast<double>(8 * kLeafParameters);
  EXPECT_EQ(planned_commit_every(workload, placement, machine, /*step_seconds=*/20), 3U);
  EXPECT_EQ(planned_commit_every(workload, placement, machine, /*step_seconds=*/19), 4U);
  EXPECT_EQ(planned_commit_every(workload, placement, {}, /*step_seconds=*/19), 1U);
  for (plan::BlockCut& cut : placement.blocks) cut.state = plan::Tier::nvme;
  EXPECT_EQ(planned_commit_every(workload, placement, machine, /*step_seconds=*/1), 1U);
}

}  // namespace
}  // namespace spillway::engine::start_values_test
