// The fixture of the device backend contract: how a suite makes its backend and its data.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "offload/memory.hpp"

namespace spillway::offload {

struct BackendLimits {
  Bytes device_capacity;
  Bytes pinned_capacity;
};

struct BackendUnderTest {
  std::string name;
  std::function<std::unique_ptr<DeviceBackend>(const BackendLimits&)> make;
  /// Why this machine cannot make one, and the suite is skipped; empty, or absent: it can.
  std::function<std::string()> unavailable = nullptr;
};
inline void PrintTo(const BackendUnderTest& backend, std::ostream* out) { *out << backend.name; }

class DeviceBackendContract : public ::testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override {
    const std::string reason = GetParam().unavailable ? GetParam().unavailable() : "";
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  [[nodiscard]] static std::unique_ptr<DeviceBackend> make(Bytes device = Bytes{64 << 20},
                                                           Bytes pinned = Bytes{64 << 20}) {
    return GetParam().make({.device_capacity = device, .pinned_capacity = pinned});
  }

  static void fill(std::span<std::byte> target, std::uint64_t seed) {
    std::mt19937_64 numbers(seed);
    for (std::size_t i = 0; i < target.size(); i += sizeof(std::uint64_t)) {
      const std::uint64_t number = numbers();
      std::memcpy(&target[i], &number, std::min(sizeof number, target.size() - i));
    }
  }
  [[nodiscard]] static bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
  }
  [[nodiscard]] static bool page_aligned(const std::byte* address) {
    return reinterpret_cast<std::uintptr_t>(address) % kPageBytes == 0;
  }
  static constexpr std::array<MemoryKind, 2> kKinds{MemoryKind::device, MemoryKind::pinned};
};

}  // namespace spillway::offload
