// What the planner's tests share: plans written by hand, golden files, a seed that can be replayed.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "runtime/plan/step_plan.hpp"
#include "tests/support/source_dir.hpp"

namespace spillway::plan {

struct OpSpec {
  Lane lane = Lane::gpu;
  std::uint64_t bytes = 0;
  double flops = 0;
};

inline OpIndex append(StepPlan& plan, const OpSpec& spec,
                      const std::vector<OpIndex>& dependencies = {}) {
  Op op;
  op.lane = spec.lane;
  op.bytes = Bytes{spec.bytes};
  op.flops = spec.flops;
  op.first_dependency = static_cast<std::uint32_t>(plan.dependencies.size());
  op.dependency_count = static_cast<std::uint32_t>(dependencies.size());
  plan.dependencies.insert(plan.dependencies.end(), dependencies.begin(), dependencies.end());
  plan.ops.push_back(op);
  return static_cast<OpIndex>(plan.ops.size() - 1);
}

/// Returns the only buffer that an op writes.
inline Buffer written_by(const StepPlan& plan, const Op& op) {
  Buffer written;
  int count = 0;
  for (const Access& access : plan.accesses_of(op)) {
    if (!access.writes) continue;
    written = access.buffer;
    ++count;
  }
  EXPECT_EQ(count, 1);
  return written;
}

/// Returns the buffers of a pool that an op reads or writes.
inline std::vector<std::uint32_t> used_of(const StepPlan& plan, const Op& op, PoolKind pool) {
  std::vector<std::uint32_t> used;
  for (const Access& access : plan.accesses_of(op)) {
    if (access.buffer.pool == pool) used.push_back(access.buffer.first);
  }
  return used;
}

inline std::string read_golden(const std::string& name) {
  std::ifstream file(test_support::source_dir() / "tests/plan/golden" / name);
  EXPECT_TRUE(file.good()) << name;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Compares with a golden file. SPILLWAY_UPDATE_GOLDEN=1 writes the file instead.
inline void expect_golden(const std::string& name, const std::string& text) {
  if (std::getenv("SPILLWAY_UPDATE_GOLDEN") != nullptr) {
    std::ofstream file(test_support::source_dir() / "tests/plan/golden" / name);
    file << text;
    EXPECT_TRUE(file.good()) << name;
    return;
  }
  EXPECT_EQ(text, read_golden(name)) << name;
}

inline nlohmann::json golden_json(const std::string& name) {
  return nlohmann::json::parse(read_golden(name));
}

/// Prints the seed; SPILLWAY_TEST_SEED replays one.
inline std::uint64_t property_seed() {
  const char* given = std::getenv("SPILLWAY_TEST_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20240607;
  std::printf("SPILLWAY_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

}  // namespace spillway::plan
