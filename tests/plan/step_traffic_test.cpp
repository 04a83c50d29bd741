// Built plans against the formulas of traffic, and through the simulator.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/plan/predict/simulator.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tests/plan/plan_helpers.hpp"
#include "tests/plan/step_workloads.hpp"

namespace spillway::plan::step_traffic_test {
namespace {

/// Element size x padded parameters x visits of blocks that are not resident. A layer is visited in
/// forward and in backward, the embedding in forward, the head once; a tied head visits the
/// embedding too. A resident block goes up once, if it is updated off the device.
Bytes uploads_by_formula(const Workload& workload, const Placement& placement) {
  const std::size_t head = workload.blocks.size() - 1;
  const std::uint64_t passes =
      std::uint64_t{workload.rounds} *
      (placement.order == WorkOrder::layer_major ? 1 : workload.micro_batches);
  Bytes sum;
  for (std::size_t b = 0; b <= head; ++b) {
    std::uint64_t visits = b == 0 || b == head ? 1 : 2;
    if (b == 0 && workload.tied_head) visits = 2;
    const bool updated_elsewhere = placement.blocks[b].state != Tier::device;
    const std::uint64_t times = !placement.blocks[b].resident() ? visits * passes
                                : updated_elsewhere             ? 1
                                                                : 0;
    sum += padded_bytes(workload, b) * times;
  }
  return sum;
}

TEST(StepTrafficProperty, EqualsTheFormulasExactly) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 300; ++i) {
    const auto [workload, placement] = cases.next();
    const StepPlan plan = build_training_step(workload, placement);
    EXPECT_EQ(bytes_moved(plan, kUploadParams), uploads_by_formula(workload, placement));
    std::vector<Tile> paged = make_tiles(workload, placement.tile_parameters, /*replica=*/0);
    std::erase_if(
        paged, [&](const Tile& tile) { return placement.blocks[tile.block].state != Tier::nvme; });
    Bytes read;
    Bytes written;
    for (std::size_t t = 0; t < paged.size(); ++t) {
      // A tile with a staging slot to itself stays in it.
      const bool alone = t < placement.state_slots && t + placement.state_slots >= paged.size();
      if (!alone) read += state_bytes(placement.format, paged[t].count);
      written += slot_bytes(placement.format, paged[t].count);
    }
    EXPECT_EQ(bytes_moved(plan, kDownloadGrads), downloads_by_formula(workload, placement));
    EXPECT_EQ(bytes_moved(plan, kReadState), read);
    EXPECT_EQ(bytes_moved(plan, kWriteState), written);
  }
}

TEST(StepTraffic, OfLayersFollowsTheScheduleTable) {
  Workload workload = small_workload();
  workload.compute = DType::bf16;
  workload.micro_batches = 4;
  for (const std::uint32_t rounds : {1U, 3U}) {
    workload.rounds = rounds;
    const Bytes layers = padded_bytes(workload, 1) * 2U;
    const auto moved = [&](const Placement& placement, const Copy& copied) {
      Bytes sum;
      for (const Op& op : build_training_step(workload, placement).ops) {
        if (is_copy(op, copied) && (op.block == 1 || op.block == 2)) sum += op.bytes;
      }
      return sum;
    };
    Placement placement = uniform_placement(workload, {});
    EXPECT_EQ(moved(placement, kUploadParams), layers * (2U * rounds));
    EXPECT_EQ(moved(placement, kDownloadGrads), layers * rounds);
    placement.order = WorkOrder::micro_batch_major;
    placement.gradient_slots = 4;
    EXPECT_EQ(moved(placement, kUploadParams), layers * (2U * 4 * rounds));
    // The table's gradient leaves after each micro-batch; here they are summed on the device.
    EXPECT_EQ(moved(placement, kDownloadGrads), layers * rounds);
    placement = uniform_placement(workload, {.parameters = Tier::device});
    EXPECT_EQ(moved(placement, kUploadParams), layers);
    EXPECT_EQ(moved(placement, kDownloadGrads), layers * rounds);
  }
}

TEST(StepTraffic, OfTheCpuLaneIsWhatThePassesReadAndWrite) {
  Workload workload = small_workload();
  workload.compute = DType::bf16;
  const double parameters = 8 * kLeafParameters;
  const auto each = [&](Tier state, OpKind kind, Lane lane = Lane::cpu) {
    const Placement placement = uniform_placement(
        workload, state == Tier::device ? kAllOnDevice : BlockCut{.state = state});
    Bytes sum;
    for (const Op& op : build_training_step(workload, placement).ops) {
      if (op.kind == kind && op.lane == lane) sum += op.bytes;
    }
    return static_cast<double>(sum.value()) / parameters;
  };
  EXPECT_EQ(each(Tier::host, OpKind::update), 28);
  EXPECT_EQ(each(Tier::nvme, OpKind::update), 28);  // checksums are made in the cache
  EXPECT_EQ(each(Tier::device, OpKind::update, Lane::gpu), 28);
  EXPECT_EQ(each(Tier::host, OpKind::grad_norm), 2);
  EXPECT_EQ(each(Tier::host, OpKind::add_gradient), 0);
  EXPECT_EQ(each(Tier::host, OpKind::round_gradient, Lane::gpu), 6);
  EXPECT_EQ(each(Tier::device, OpKind::round_gradient, Lane::gpu), 6 + 4);
  workload.rounds = 3;
  EXPECT_EQ(each(Tier::host, OpKind::update), 30);
  EXPECT_EQ(each(Tier::host, OpKind::grad_norm), 4);
  EXPECT_EQ(each(Tier::host, OpKind::add_gradient), (2 + 4) + 2 * (2 + 8));
  workload.rounds = 1;
  workload.compute = DType::fp32;
  EXPECT_EQ(each(Tier::host, OpKind::update), 32);
  EXPECT_EQ(each(Tier::host, OpKind::grad_norm), 4);
}

MachineProfile random_profile(RandomCases& cases) {
  const auto rate = [&] { return static_cast<double>(cases.between(1, 1000)) * 1e6; };
  MachineProfile profile;
  profile.gpu_flops = rate();
  profile.h2d = rate();
  profile.d2h = rate();
  profile.update = rate();
  profile.gpu_update = rate();
  profile.nvme_read = rate();
  profile.nvme_write = rate();
  profile.op_overhead_seconds = static_cast<double>(cases.between(0, 10)) * 1e-6;
  return profile;
}

TEST(StepPredictionProperty, IsFiniteAndNoSlowerOnAFasterMachine) {
  RandomCases cases(property_seed());
  double MachineProfile::*const rates[] = {
      &MachineProfile::gpu_flops,  &MachineProfile::h2d,        &MachineProfile::d2h,
      &MachineProfile::update,     &MachineProfile::gpu_update, &MachineProfile::nvme_read,
      &MachineProfile::nvme_write,
  };
  for (int i = 0; i < 100; ++i) {
    const auto [workload, placement] = cases.next();
    const StepPlan plan = build_training_step(workload, placement);
    MachineProfile profile = random_profile(cases);
    double seconds = simulate(plan, profile).step_seconds;
    EXPECT_TRUE(std::isfinite(seconds));
    EXPECT_GT(seconds, 0);
    for (double MachineProfile::*const rate : rates) {
      profile.*rate *= 2;
      const double faster = simulate(plan, profile).step_seconds;
      EXPECT_LE(faster, seconds * (1 + 1e-9)) << "case " << i;
      seconds = faster;
    }
  }
}

TEST(StepPrediction, OfAStreamedStepOverFastLinksIsComputeTime) {
  Workload workload = small_workload();
  workload.micro_batches = 3;
  workload.rounds = 2;
  const Placement placement = uniform_placement(workload, {.state = Tier::nvme});
  MachineProfile profile;
  profile.gpu_flops = 1e9;
  profile.h2d = profile.d2h = profile.update = profile.nvme_read = profile.nvme_write = 1e18;
  // 8 leaves: forward 1e6 and backward 2e6 FLOPs each; the 4 of the two layers recompute forward.
  const double flops = 6 * (8 * 3e6 + 4 * 1e6);
  const Prediction prediction = simulate(build_training_step(workload, placement), profile);
  EXPECT_NEAR(prediction.step_seconds, flops / 1e9, 1e-6 * flops / 1e9);
  EXPECT_EQ(prediction.bounding, Lane::gpu);
}

TEST(StepPrediction, HidesTheUpdateOfLaterBlocksBehindTheForwardOfEarlierOnes) {
  // Ten layers, resident, updated on the host; each update and each upload as long as a forward.
  Workload workload = small_workload();
  workload.blocks.assign(12, workload.blocks[1]);
  for (BlockShape& block : workload.blocks) block.forward_flops = block.backward_flops = 1e6;
  for (const bool resident : {true, false}) {
    const Placement placement = uniform_placement(
        workload, {.parameters = resident ? Tier::device : Tier::host, .saved = Tier::device});
    const auto bytes = static_cast<double>(padded_bytes(workload, 0).value());
    MachineProfile profile;
    profile.gpu_flops = 1e9;  // 1 ms a pass of a block
    profile.update = 32.0 / 4 * bytes / 1e-3;
    profile.h2d = bytes / 1e-3;
    profile.d2h = 1e18;
    const StepPlan plan = build_training_step(workload, placement);
    const Prediction prediction = simulate(plan, profile);
    // 24 ms of computing, 2 ms until the first block is up, and the norms, an eighth of an update.
    EXPECT_NEAR(prediction.step_seconds, 26e-3, 1e-3) << (resident ? "resident" : "streamed");
  }
}

}  // namespace
}  // namespace spillway::plan::step_traffic_test
