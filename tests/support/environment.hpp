// What the environment may ask of a test: a seed to repeat a failure, a count other than CI's; and
// what a test may want of the environment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>

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

/// Sets a variable, or takes it away, as long as this lives. In one thread only.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~Variable() { set(before_ ? before_->c_str() : nullptr); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const char* value) const {
    if (value != nullptr) {
      ::setenv(name_, value, 1);
    } else {
      ::unsetenv(name_);
    }
  }

  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace spillway::test_support
