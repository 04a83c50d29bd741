#include "offload/staging_pool.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "offload/host/host_backend.hpp"
#include "tests/support/allocation_counter.hpp"

namespace spillway::offload::staging_pool_test {
namespace {

std::unique_ptr<DeviceBackend> make_backend() {
  return make_host_backend({.device_capacity = 1_MiB, .pinned_capacity = 1_MiB});
}

TEST(StagingPool, LendsDisjointPageAlignedBuffersOfTheSizeAsked) {
  const auto backend = make_backend();
  StagingPool pool(*backend, {.slots = 3, .slot_bytes = 5000_B});
  std::vector<StagingLease> leases;
  std::set<std::uint32_t> slots;
  for (int i = 0; i < 3; ++i) {
    auto lease = pool.try_lease();
    ASSERT_TRUE(lease.has_value());
    ASSERT_EQ(lease->bytes().size(), 5000U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(lease->bytes().data()) % kPageBytes, 0U);
    EXPECT_EQ(lease->bytes().data(),
              pool.storage().data() + lease->slot() * pool.slot_stride().value());
    std::memset(lease->bytes().data(), i, lease->bytes().size());
    slots.insert(lease->slot());
    leases.push_back(std::move(*lease));
  }
  EXPECT_EQ(slots.size(), 3U);
  for (int i = 0; i < 3; ++i) {
    for (const std::byte byte : leases[static_cast<std::size_t>(i)].bytes()) {
      ASSERT_EQ(byte, static_cast<std::byte>(i));
    }
  }
}

TEST(StagingPool, RefusesLeaseWhenEverySlotIsOut) {
  const auto backend = make_backend();
  StagingPool pool(*backend, {.slots = 2, .slot_bytes = 4_KiB});
  auto first = pool.try_lease();
  auto second = pool.try_lease();
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_FALSE(pool.try_lease().has_value());
  const std::uint32_t slot = first->slot();
  first->release();
  const auto third = pool.try_lease();
  ASSERT_TRUE(third.has_value());
  EXPECT_EQ(third->slot(), slot);
}

TEST(StagingPool, CountsWhatIsOutAndTheMostThatEverWas) {
  const auto backend = make_backend();
  StagingPool pool(*backend, {.slots = 3, .slot_bytes = 4_KiB});
  EXPECT_EQ(pool.usage().current, 0U);
  {
    const auto first = pool.try_lease();
    const auto second = pool.try_lease();
    EXPECT_EQ(pool.usage().current, 2U);
  }
  const auto third = pool.try_lease();
  EXPECT_EQ(pool.usage().current, 1U);
  EXPECT_EQ(pool.usage().high_water, 2U);
  EXPECT_EQ(pool.usage().slots, 3U);
}

TEST(StagingPool, TakesExactlyItsStorageFromTheBackend) {
  const auto backend = make_backend();
  {
    StagingPool pool(*backend, {.slots = 3, .slot_bytes = 5000_B});
    EXPECT_EQ(backend->usage(MemoryKind::pinned).current, Bytes{2 * 8192 + 5000});
    EXPECT_EQ(StagingPool::storage_bytes({.slots = 3, .slot_bytes = 5000_B}),
              Bytes{2 * 8192 + 5000});
  }
  EXPECT_EQ(backend->usage(MemoryKind::pinned).current, Bytes{});
}

TEST(StagingPool, AMovedLeaseReturnsItsBufferOnce) {
  const auto backend = make_backend();
  StagingPool pool(*backend, {.slots = 2, .slot_bytes = 4_KiB});
  StagingLease target;
  EXPECT_FALSE(static_cast<bool>(target));
  {
    auto source = pool.try_lease();
    target = std::move(*source);
    EXPECT_FALSE(static_cast<bool>(*source));
  }
  EXPECT_EQ(pool.usage().current, 1U);
  target = std::move(*pool.try_lease());  // gives the first back
  EXPECT_EQ(pool.usage().current, 1U);
  target.release();
  target.release();
  EXPECT_EQ(pool.usage().current, 0U);
}

TEST(StagingPool, LendsWithoutAllocating) {
  const auto backend = make_backend();
  StagingPool pool(*backend, {.slots = 8, .slot_bytes = 4_KiB});
  const test_support::AllocationCounter counter;
  for (int i = 0; i < 1000; ++i) {
    const auto first = pool.try_lease();
    const auto second = pool.try_lease();
  }
  EXPECT_EQ(counter.allocations(), 0);
}

TEST(StagingPool, RefusesAPoolOfNothing) {
  const auto backend = make_backend();
  EXPECT_THROW(StagingPool(*backend, {.slots = 0, .slot_bytes = 4_KiB}), Error);
  EXPECT_THROW(StagingPool(*backend, {.slots = 1, .slot_bytes = 0_B}), Error);
}

TEST(StagingPoolDeathTest, DestroyingAPoolWithALeaseOutIsABrokenInvariant) {
  const auto backend = make_backend();
  EXPECT_DEATH(
      {
        std::optional<StagingLease> lease;
        StagingPool pool(*backend, {.slots = 1, .slot_bytes = 4_KiB});
        lease = pool.try_lease();
      },
      "broken invariant");
}

}  // namespace
}  // namespace spillway::offload::staging_pool_test
