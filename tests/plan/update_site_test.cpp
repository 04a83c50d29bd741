#include "runtime/plan/placement/update_site.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/error.hpp"

namespace spillway::plan {
namespace {

constexpr std::uint64_t kParameters = 1 << 26;

/// An H100 on PCIe 5 with 250 GB/s of DRAM left for the update.
MachineProfile pcie_machine() {
  MachineProfile profile;
  profile.gpu_flops = 550e12;
  profile.h2d = 50e9;
  profile.d2h = 50e9;
  profile.h2d_d2h_combined = 90e9;
  profile.update = 250e9;
  profile.gpu_update = 2.5e12;
  return profile;
}

UpdateQuestion question_with_tokens(double tokens) {
  return {.parameters = ElementCount{kParameters},
          .fwd_bwd_flops = 8 * tokens * static_cast<double>(kParameters)};
}

TEST(UpdateSite, KeepsTheUpdateOnTheCpuWhereTheLinkIsTheNarrowPlace) {
  UpdateQuestion question = question_with_tokens(8192);
  question.free_device = Bytes{2 * kParameters};
  const UpdateDecision decision = decide_update_site(pcie_machine(), question);
  EXPECT_EQ(decision.site, UpdateSite::cpu);
  // The cut of ZeRO-Offload: 2 bytes stay, 4 bytes move.
  EXPECT_EQ(decision.cut.gpu_bytes.value(), 2 * kParameters);
  EXPECT_EQ(decision.cut.traffic().value(), 4 * kParameters);
  // 8192 tokens hide 28 bytes at 250 GB/s (7.7k do): the GPU bounds the block.
  EXPECT_DOUBLE_EQ(decision.seconds.slowest, decision.seconds.gpu);
  EXPECT_LT(decision.seconds.cpu, decision.seconds.gpu);
}

TEST(UpdateSite, SavesDeviceMemoryBetweenCutsOfEqualTimeAndTraffic) {
  UpdateQuestion question = question_with_tokens(8192);
  question.free_device = Bytes{4 * kParameters};  // room for the gradient, which may as well leave
  const UpdateDecision decision = decide_update_site(pcie_machine(), question);
  EXPECT_EQ(decision.cut.gpu_bytes.value(), 2 * kParameters);
}

TEST(UpdateSite, StreamsParametersWhenTheDeviceHasNoRoomForThem) {
  const UpdateDecision decision = decide_update_site(pcie_machine(), question_with_tokens(8192));
  EXPECT_EQ(decision.site, UpdateSite::cpu);
  EXPECT_EQ(decision.cut.gpu_bytes.value(), 0U);
  EXPECT_EQ(decision.cut.up.value(), 4 * kParameters);
  EXPECT_EQ(decision.cut.down.value(), 2 * kParameters);
}

TEST(UpdateSite, MovesToTheGpuWhenDeviceMemoryIsFree) {
  UpdateQuestion question = question_with_tokens(8192);
  question.free_device = Bytes{16 * kParameters};
  UpdateDecision decision = decide_update_site(pcie_machine(), question);
  EXPECT_EQ(decision.site, UpdateSite::gpu_resident);
  EXPECT_EQ(decision.cut.traffic().value(), 0U);
  question.free_device -= Bytes{1};
  EXPECT_EQ(decide_update_site(pcie_machine(), question).site, UpdateSite::cpu);
}

TEST(UpdateSite, MovesToTheGpuWhenDramIsTheBottleneck) {
  // A chip-to-chip link of 400 GB/s each way beside a DRAM that gives the update 100 GB/s.
  MachineProfile profile = pcie_machine();
  profile.h2d = 400e9;
  profile.d2h = 400e9;
  profile.h2d_d2h_combined = 0;
  profile.update = 100e9;
  const UpdateDecision decision = decide_update_site(profile, question_with_tokens(512));
  EXPECT_EQ(decision.site, UpdateSite::gpu_streamed);
  EXPECT_EQ(decision.seconds.cpu, 0);
  // With tokens enough to hide 28 bytes at 100 GB/s the GPU has better things to do.
  EXPECT_EQ(decide_update_site(profile, question_with_tokens(40'000)).site, UpdateSite::cpu);
  // Over PCIe the state would take longer than the update itself.
  MachineProfile pcie = pcie_machine();
  pcie.update = 200e9;
  EXPECT_EQ(decide_update_site(pcie, question_with_tokens(512)).site, UpdateSite::cpu);
}

TEST(UpdateSite, NeverUpdatesOnADeviceThatCannot) {
  MachineProfile profile = pcie_machine();
  profile.gpu_update = 0;
  profile.update = 1e6;
  UpdateQuestion question = question_with_tokens(1);
  question.free_device = Bytes{16 * kParameters};
  EXPECT_EQ(decide_update_site(profile, question).site, UpdateSite::cpu);
}

TEST(UpdateSite, SmallerStateFitsEarlier) {
  UpdateQuestion question = question_with_tokens(8192);
  question.free_device = Bytes{13 * kParameters};
  EXPECT_EQ(decide_update_site(pcie_machine(), question).site, UpdateSite::cpu);
  question.format = StateFormat::bf16;  // 2 + 2 + 4 + 2 + 2
  EXPECT_EQ(decide_update_site(pcie_machine(), question).site, UpdateSite::gpu_resident);
}

TEST(UpdateSite, AddsUpWhatSharesTheCores) {
  MachineProfile profile = pcie_machine();
  profile.cpu_shares_gpu = true;
  const UpdateDecision decision = decide_update_site(profile, question_with_tokens(8192));
  EXPECT_DOUBLE_EQ(decision.seconds.slowest, decision.seconds.gpu + decision.seconds.cpu);
}

TEST(UpdateSite, NamesTheRateThatIsMissing) {
  MachineProfile profile = pcie_machine();
  profile.h2d = 0;
  try {
    (void)decide_update_site(profile, question_with_tokens(1));
    FAIL() << "no rate to the device";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), testing::HasSubstr("copies to the device"));
  }
}

TEST(UpdateSite, PrintsSiteTimesAndCut) {
  const UpdateQuestion question{.parameters = ElementCount{1'000'000}, .fwd_bwd_flops = 55e12};
  EXPECT_EQ(to_text(question, decide_update_site(pcie_machine(), question)),
            "update on cpu, 0.1 s (gpu 0.1, h2d 8e-05, d2h 4e-05, cpu 0.000112); "
            "cut 6000000 B (4000000 up, 2000000 down), 16000000 B saved, 0 B left: "
            "p16 g16 update_float2half momentum_variance p32");
}

}  // namespace
}  // namespace spillway::plan
