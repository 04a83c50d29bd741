// What the environment may ask of a test: a seed to repeat a failure, a count other than CI's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace spillway::test_support {

/// SPILLWAY_TEST_SEED, or one at random; printed, so that a failure can be repeated.
inline std::uint64_t test_seed() {
  const char* given = std::getenv("SPILLWAY_TEST_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::printf("SPILLWAY_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

/// How often a test does something: `name` in the environment, or what suits a CI run.
inline std::size_t count_from(const char* name, std::size_t usual) {
  const char* given = std::getenv(name);
  return given != nullptr ? std::strtoull(given, nullptr, 10) : usual;
}

}  // namespace spillway::test_support
