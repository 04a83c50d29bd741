#include "offload/device_span.hpp"

#include <gtest/gtest.h>

#include <array>
#include <type_traits>

namespace spillway::offload::device_span_test {
namespace {

template <class T>
concept Indexable = requires(T span) { span[0]; };
template <class T>
concept Dereferenceable = requires(T span) { *span; };
template <class T>
concept Iterable = requires(T span) { span.begin(); };

// The host cannot read through it, and constness is only ever added.
static_assert(!Indexable<DeviceSpan<int>> && !Dereferenceable<DeviceSpan<int>>);
static_assert(!Iterable<DeviceSpan<int>>);
static_assert(std::is_convertible_v<DeviceSpan<int>, DeviceSpan<const int>>);
static_assert(!std::is_convertible_v<DeviceSpan<const int>, DeviceSpan<int>>);
static_assert(std::is_trivially_copyable_v<DeviceSpan<int>>);

TEST(DeviceSpan, PartsAndReinterpretationsKeepTheirPlace) {
  alignas(8) std::array<std::byte, 64> bytes{};
  const DeviceSpan<std::byte> all(bytes.data(), bytes.size());
  const DeviceSpan<std::byte> part = all.subspan(16, 32);
  EXPECT_EQ(part.address(), bytes.data() + 16);
  EXPECT_EQ(part.size(), 32U);
  const DeviceSpan<const float> floats = part.as<const float>();
  EXPECT_EQ(floats.size(), 8U);
  EXPECT_EQ(floats.size_bytes(), 32U);
  EXPECT_EQ(static_cast<const void*>(floats.address()), bytes.data() + 16);
  EXPECT_TRUE(all.subspan(64, 0).empty());
}

TEST(DeviceSpanDeathTest, APartBeyondTheEndIsABrokenInvariant) {
  std::array<std::byte, 64> bytes{};
  const DeviceSpan<std::byte> all(bytes.data(), bytes.size());
  EXPECT_DEATH((void)all.subspan(1, 64), "broken invariant");
  EXPECT_DEATH((void)all.subspan(8, ~std::size_t{0}), "broken invariant");
}

}  // namespace
}  // namespace spillway::offload::device_span_test
