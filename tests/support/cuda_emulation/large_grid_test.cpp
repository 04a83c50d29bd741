// Grids whose items do not fit in 32 bits, of which the emulation runs the first blocks and the
// last.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>

#include "runtime/model/cuda/device_runner.cuh"
#include "tests/support/cuda_emulation/emulation.hpp"

namespace spillway::model::cuda::large_grid_test {
namespace {

constexpr std::uint64_t kMarks = 4;
constexpr std::uint64_t kMostCalls = 10'000;  ///< a step that is too short would take hours

/// Marks the last items of `count`, and counts the calls.
struct MarkLast {
  std::uint64_t count;
  std::uint64_t* calls;
  std::uint64_t* marks;

  void operator()(std::uint64_t item) const {
    if (std::atomic_ref(*calls).fetch_add(1) > kMostCalls) std::abort();
    if (item + kMarks >= count && item < count) marks[item + kMarks - count] = item;
  }
  template <class Team>
  void operator()(const Team& team, std::uint64_t index, std::byte* /*shared*/) const {
    team.each([&](unsigned lane) {
      if (lane == 0) (*this)(index);
    });
  }
};

class LargeGrid : public testing::Test {
 protected:
  LargeGrid() {
    cuda_emulation::set_order(cuda_emulation::early);
    cuda_emulation::run_blocks_at_ends(2);
    EXPECT_EQ(cudaMalloc(&memory_, (kMarks + 1) * sizeof(std::uint64_t)), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(memory_, 0, (kMarks + 1) * sizeof(std::uint64_t), stream_),
              cudaSuccess);
  }
  ~LargeGrid() override {
    cuda_emulation::run_blocks_at_ends(0);
    static_cast<void>(cudaStreamDestroy(stream_));
    static_cast<void>(cudaFree(memory_));
  }

  MarkLast body(std::uint64_t count) {
    return {.count = count,
            .calls = static_cast<std::uint64_t*>(memory_),
            .marks = static_cast<std::uint64_t*>(memory_) + 1};
  }
  /// The streams are idle: the device's memory is the test's.
  void expect_last_items(const MarkLast& body, std::uint64_t calls) {
    EXPECT_EQ(*body.calls, calls);
    for (std::uint64_t i = 0; i < kMarks; ++i) EXPECT_EQ(body.marks[i], body.count - kMarks + i);
  }

  void* memory_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

TEST_F(LargeGrid, ReachesItemsBeyond32Bits) {
  const MarkLast body = LargeGrid::body((std::uint64_t{1} << 32) + 1000);
  DeviceRunner(stream_).items(body, body.count);
  expect_last_items(body, 3 * 256 + 1000 % 256);
}

TEST_F(LargeGrid, ReachesRowsOfWarpsBeyond32Bits) {
  const MarkLast body = LargeGrid::body((std::uint64_t{1} << 32) + 10);
  DeviceRunner(stream_).teams<kWarpLanes>(body, body.count, 0);
  expect_last_items(body, 3 * bodies::kWarpsInBlock + 2);
}

/// The last rows are a second round of the grid's first blocks.
TEST_F(LargeGrid, GoesRoundWhereItCannotBeAsLongAsItsWork) {
  const MarkLast body = LargeGrid::body((std::uint64_t{1} << 31) + 1);
  DeviceRunner(stream_).teams<64>(body, body.count, 0);
  EXPECT_EQ(*body.calls, 4U + 2);
  EXPECT_EQ(body.marks[kMarks - 1], body.count - 1);
}

}  // namespace
}  // namespace spillway::model::cuda::large_grid_test
