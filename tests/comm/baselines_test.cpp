// The baselines are what the comparison says they are: their sums and the bytes that they send.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "comm/baselines/all_reduce.hpp"
#include "tests/comm/groups.hpp"
#include "tests/comm/values.hpp"

namespace spillway::comm::baselines_test {
namespace {

constexpr std::size_t kCounts[] = {0, 1, 7, 1201};

class Baselines : public testing::TestWithParam<Group> {
 protected:
  [[nodiscard]] std::uint32_t ranks() const { return GetParam().ranks; }
};

/// Returns the data after the baseline.
Buffer reduced(Baseline baseline, Communicator& self, std::size_t count, DType dtype) {
  Buffer data = data_of(self.rank().value(), count, dtype);
  Buffer scratch(scratch_bytes(baseline, data.size(), self.ranks()));
  all_reduce(baseline, self, data, scratch, dtype);
  return data;
}

TEST_P(Baselines, EachToAllAndMasterSumInTheOrderOfRanks) {
  GetParam().run([&](Communicator& self) {
    for (const std::size_t count : kCounts) {
      for (const Baseline baseline : {Baseline::each_to_all, Baseline::master}) {
        EXPECT_EQ(reduced(baseline, self, count, DType::fp32), sum_of(ranks(), count, {}));
        EXPECT_EQ(reduced(baseline, self, count, DType::bf16),
                  sum_of(ranks(), count, {DType::bf16, DType::bf16}));
      }
    }
  });
}

/// Part p of the sum begins with rank p's data; every rank that it passes adds its own.
Buffer ring_sum(std::uint32_t ranks, std::size_t count) {
  std::vector<float> sum(count);
  for (std::uint32_t part = 0; part < ranks; ++part) {
    for (std::uint32_t step = 0; step < ranks; ++step) {
      const std::vector<float> values = values_of((part + step) % ranks, count, DType::fp32);
      for (std::size_t i = count * part / ranks; i < count * (part + 1) / ranks; ++i) {
        sum[i] = step == 0 ? values[i] : sum[i] + values[i];
      }
    }
  }
  return encoded(sum, DType::fp32);
}

TEST_P(Baselines, ARingSumsEachPartFromItsOwnRankOn) {
  GetParam().run([&](Communicator& self) {
    for (const std::size_t count : kCounts) {
      EXPECT_EQ(reduced(Baseline::ring, self, count, DType::fp32), ring_sum(ranks(), count));
    }
  });
}

TEST_P(Baselines, SendWhatTheFieldSaysTheySend) {
  const std::size_t bytes = std::size_t{64} * ranks();
  const std::size_t others = ranks() - 1;
  GetParam().run([&](Communicator& self) {
    const auto sent = [&](Baseline baseline) {
      const Bytes before = self.sent();
      reduced(baseline, self, bytes / sizeof(float), DType::fp32);
      return (self.sent() - before).value();
    };
    EXPECT_EQ(sent(Baseline::each_to_all), others * bytes);
    EXPECT_EQ(sent(Baseline::ring), 2 * others * bytes / ranks());
    EXPECT_EQ(sent(Baseline::master), self.rank() == Rank{0} ? others * bytes : bytes);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Baselines, testing::ValuesIn(groups()), name_of_group);

}  // namespace
}  // namespace spillway::comm::baselines_test
