// How calibration is cut to the memory and the disks that there are.
#include "runtime/engine/machine/calibration_sizes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "runtime/base/error.hpp"
#include "runtime/engine/machine/update_bench.hpp"

namespace spillway::engine::calibration_sizes_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const cpu_adam::Kernel& kernel() {
  return cpu_adam::find_kernel(cpu_adam::Isa::scalar, DType::bf16, DType::bf16, StateFormat::fp32);
}

/// What the refusal says; empty where `measure` has room.
template <class Measure>
std::string refusal_of(const Measure& measure) {
  try {
    static_cast<void>(measure());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    return error.what();
  }
  return {};
}

TEST(CalibrationSizes, AnUpdateTakesWhatItWantsWhereThereIsRoom) {
  // 12 bytes of state and 2 + 2 of gradient and parameter.
  EXPECT_EQ(update_bytes(kernel(), ElementCount{4096}).value(), 16U * 4096);
  const ElementCount tile{2U << 20};
  EXPECT_EQ(update_parameters(kernel(), tile, ElementCount{kLeafParameters}, 64_MiB), tile);
}

TEST(CalibrationSizes, AnUpdateIsTimedWithMoreThanCachesHoldWhereTheModelHasIt) {
  const ElementCount tile{std::uint64_t{4} << 20};
  EXPECT_EQ(timed_parameters(kernel(), tile, tile + tile), tile + tile) << "a small model";
  EXPECT_EQ(timed_parameters(kernel(), tile, tile), tile);
  const ElementCount large{std::uint64_t{8'000'000'000}};
  const ElementCount timed = timed_parameters(kernel(), tile, large);
  EXPECT_GT(update_bytes(kernel(), timed), 255_MiB);
  EXPECT_LT(update_bytes(kernel(), timed), 257_MiB);
  EXPECT_EQ(timed_parameters(kernel(), large, large), large) << "a large tile";
}

TEST(CalibrationSizes, AnUpdateIsCutToWholeLeavesThatFit) {
  const ElementCount leaf{kLeafParameters};
  for (const std::uint64_t wanted : {std::uint64_t{512}, std::uint64_t{511}, std::uint64_t{3}}) {
    for (Bytes room = 64_KiB; room < 16_MiB; room = room * 3U) {
      const ElementCount count = update_parameters(kernel(), leaf * wanted, leaf, room);
      EXPECT_LE(update_bytes(kernel(), count), room);
      EXPECT_EQ(count.value() % kLeafParameters, 0U);
      EXPECT_LE(count, leaf * wanted);
      // Not much less than would fit.
      const bool whole = count == leaf * wanted;
      EXPECT_TRUE(whole || update_bytes(kernel(), count * 2U + leaf) > room) << room.value();
    }
  }
}

TEST(CalibrationSizes, AnUpdateOfLessThanTheLeastIsRefusedWithTheBudget) {
  const ElementCount leaf{kLeafParameters};
  EXPECT_THAT(refusal_of([&] { return update_parameters(kernel(), leaf * 8U, leaf, 63_KiB); }),
              AllOf(HasSubstr("to measure the update takes at least 64.0 KiB of host memory"),
                    HasSubstr("budget is 63.0 KiB"), HasSubstr("--host-memory of at least")));
  EXPECT_EQ(prefetch_parameters(kernel(), 1_GiB), kPrefetchParameters);
  EXPECT_LT(prefetch_parameters(kernel(), 100_MiB), kPrefetchParameters);
  EXPECT_THAT(refusal_of([&] { return prefetch_parameters(kernel(), 16_MiB); }),
              HasSubstr("takes at least 32."));
}

TEST(CalibrationSizes, CopiesFitBothMemoriesTwice) {
  EXPECT_EQ(link_bytes(1_MiB, 2_MiB, 1_GiB), 1_MiB);
  EXPECT_EQ(link_bytes(1_MiB, 1_GiB, 100_KiB), 48_KiB);
  EXPECT_EQ(link_bytes(Bytes{100}, 8_KiB, 8_KiB), Bytes{100});
  EXPECT_THAT(refusal_of([] { return link_bytes(1_MiB, 1_GiB, 7_KiB); }),
              HasSubstr("8.00 KiB of host memory and the budget is 7.00 KiB"));
  EXPECT_THAT(refusal_of([] { return link_bytes(1_MiB, 7_KiB, 1_GiB); }),
              HasSubstr("--device-memory of at least 8.00 KiB"));
}

TEST(CalibrationSizes, TilesOnDiskFitMemoryAndTheSmallestDrive) {
  const DriveSpace large{.directory = "/large", .free = 1_GiB};
  EXPECT_THAT(disk_tiles(64_MiB, std::vector{large}), AllOf(SizeIs(4), Each(16_MiB)));
  EXPECT_THAT(disk_tiles(Bytes{(64_MiB).value() - 1}, std::vector{large}), Each(8_MiB));
  const DriveSpace small{.directory = "/small", .free = 1_MiB};
  // Two slots of each of four tiles, and a few pages beside them.
  EXPECT_THAT(disk_tiles(64_MiB, std::vector{small}), Each(64_KiB));
  EXPECT_THAT(disk_tiles(64_MiB, std::vector{large, small}), Each(64_KiB));
  // Two pages of header, two of each of two records, and two slots of each of four pages.
  const DriveSpace full{.directory = "/full", .free = 56_KiB};
  EXPECT_THAT(disk_tiles(64_MiB, std::vector{full}), Each(4_KiB));
}

TEST(CalibrationSizes, NoRoomForPagesOnADriveIsRefusedWithTheDrive) {
  const std::vector<DriveSpace> drives{{.directory = "/large", .free = 1_GiB},
                                       {.directory = "/full", .free = 20_KiB}};
  EXPECT_THAT(refusal_of([&] { return disk_tiles(64_MiB, drives); }),
              AllOf(HasSubstr("to measure the disk takes at least"),
                    HasSubstr("/full has 20.0 KiB free"), HasSubstr("--nvme")));
  EXPECT_THAT(refusal_of([&] { return disk_tiles(15_KiB, drives); }),
              HasSubstr("16.0 KiB of host memory and the budget is 15.0 KiB"));
}

}  // namespace
}  // namespace spillway::engine::calibration_sizes_test
