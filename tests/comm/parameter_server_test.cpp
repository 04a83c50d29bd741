// A parameter server on every backend: what it holds at the end is what a single process computes
// that takes the pushes in the order that the server reports, and what it sends is a closed
// formula.
#include "comm/baselines/parameter_server.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "tests/comm/groups.hpp"

namespace spillway::comm::parameter_server_test {
namespace {

using Floats = std::vector<float>;

constexpr std::size_t kElements = 601;
constexpr std::uint32_t kPushes = 5;
constexpr std::uint32_t kLocalSteps = 3;
constexpr float kRate = 0.125F;

class ParameterServers : public testing::TestWithParam<Group> {
 protected:
  [[nodiscard]] std::uint32_t ranks() const { return GetParam().ranks; }
  [[nodiscard]] std::uint32_t workers() const { return ranks() - 1; }
  [[nodiscard]] ServerOptions options(ServerMode mode) const {
    return {.mode = mode,
            .elements = kElements,
            .staleness = ranks(),
            .local_steps = mode == ServerMode::geo ? kLocalSteps : 1};
  }
};

Floats first_values() {
  Floats values(kElements);
  std::iota(values.begin(), values.end(), -100.0F);
  return values;
}

/// Returns the gradient of a worker's step: it depends on what the worker has pulled.
Floats gradient_of(std::span<const float> values, std::uint32_t worker, std::uint32_t step) {
  Floats gradient(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    gradient[i] = 0.3F * values[i] + static_cast<float>((i + 7 * worker) % 11 + step);
  }
  return gradient;
}

void descend(std::span<float> values, std::span<const float> gradient) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] -= kRate * gradient[i];
}

/// What the worker of a rank does in a session.
void work(ParameterWorker& worker, ServerMode mode, std::uint32_t rank) {
  const std::uint32_t steps = mode == ServerMode::geo ? kPushes * kLocalSteps : kPushes;
  for (std::uint32_t step = 0; step < steps; ++step) {
    const Floats gradient = gradient_of(worker.values(), rank, step);
    if (mode == ServerMode::geo) {
      descend(worker.values(), gradient);
      EXPECT_EQ(worker.end_local_step(), (step + 1) % kLocalSteps == 0);
    } else {
      worker.push(gradient);
    }
  }
}

/// Returns what the server holds after a session, and appends to `order` what it has reported.
Floats served(Communicator& self, const ServerOptions& options, std::vector<Push>& order) {
  const Floats first = first_values();
  ParameterServer server(self, options, first);
  server.begin(kPushes);
  server.serve([&](std::span<float> values, std::span<const float> pushed, const Push& push) {
    order.push_back(push);
    options.mode == ServerMode::geo ? add_pushed(values, pushed, push) : descend(values, pushed);
  });
  return {server.values().begin(), server.values().end()};
}

/// Runs a session; `check` is called on the rank that is the server.
void run_session(
    const Group& group, const ServerOptions& options,
    const std::function<void(const Floats& values, const std::vector<Push>& order)>& check) {
  group.run([&](Communicator& self) {
    if (self.rank() == Rank{0}) {
      std::vector<Push> order;
      const Floats values = served(self, options, order);
      return check(values, order);
    }
    ParameterWorker worker(self, options);
    worker.begin(kPushes);
    work(worker, options.mode, self.rank().value());
  });
}

TEST_P(ParameterServers, SynchronousStepsAreThoseOfOneProcess) {
  if (ranks() < 2) return;  // there is no worker
  run_session(GetParam(), options(ServerMode::synchronous),
              [&](const Floats& values, const std::vector<Push>& order) {
                Floats expected = first_values();
                for (std::uint32_t step = 0; step < kPushes; ++step) {
                  Floats sum = gradient_of(expected, 1, step);
                  for (std::uint32_t worker = 2; worker < ranks(); ++worker) {
                    const Floats more = gradient_of(expected, worker, step);
                    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
                  }
                  descend(expected, sum);
                }
                EXPECT_EQ(values, expected);
                EXPECT_EQ(order.size(), kPushes);
              });
}

TEST_P(ParameterServers, TheSynchronousSumHasTheBitsOfAnAllReduce) {
  if (ranks() < 2) return;  // there is no worker
  std::vector<Rank> members;
  for (std::uint32_t rank = 1; rank < ranks(); ++rank) members.push_back(Rank{rank});
  GetParam().run([&](Communicator& self) {
    Floats sum(kElements);
    if (self.rank() == Rank{0}) {
      ParameterServer server(self, options(ServerMode::synchronous), sum);
      server.begin(1);
      return server.serve([](std::span<float> values, std::span<const float> pushed, const Push&) {
        std::ranges::copy(pushed, values.begin());
      });
    }
    ParameterWorker worker(self, options(ServerMode::synchronous));
    worker.begin(1);
    sum = gradient_of(first_values(), self.rank().value(), 0);
    worker.push(sum);
    self.subgroup(members)->all_reduce(std::as_writable_bytes(std::span{sum}), DType::fp32).wait();
    EXPECT_TRUE(std::ranges::equal(worker.values(), sum));
  });
}

/// Takes the pushes in their order, with what each worker has pulled at its push before.
Floats replayed(ServerMode mode, const std::vector<Push>& order, std::uint32_t ranks) {
  Floats values = first_values();
  std::vector<Floats> pulled(ranks, values);
  std::vector<std::uint32_t> steps(ranks);
  for (const Push& push : order) {
    const std::uint32_t worker = push.worker.value();
    if (mode == ServerMode::asynchronous) {
      descend(values, gradient_of(pulled[worker], worker, steps[worker]++));
    } else {
      Floats local = pulled[worker];
      for (std::uint32_t k = 0; k < kLocalSteps; ++k) {
        descend(local, gradient_of(local, worker, steps[worker]++));
      }
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] += (local[i] - pulled[worker][i]) / static_cast<float>(ranks - 1);
      }
    }
    pulled[worker] = values;
  }
  return values;
}

TEST_P(ParameterServers, ArrivalsAreAppliedInTheOrderThatIsReported) {
  if (ranks() < 2) return;  // there is no worker
  for (const ServerMode mode : {ServerMode::asynchronous, ServerMode::geo}) {
    SCOPED_TRACE(name_of(mode));
    run_session(GetParam(), options(mode),
                [&](const Floats& values, const std::vector<Push>& order) {
                  EXPECT_EQ(values, replayed(mode, order, ranks()));
                  EXPECT_EQ(order.size(), kPushes * workers());
                  std::vector<std::size_t> pulled(ranks());
                  for (std::size_t i = 0; i < order.size(); ++i) {
                    std::size_t& before = pulled[order[i].worker.value()];
                    EXPECT_EQ(order[i].staleness, i - before) << i;
                    EXPECT_LE(order[i].staleness, options(mode).staleness);
                    before = i + 1;
                  }
                });
  }
}

TEST_P(ParameterServers, SendWhatTheFormulasSay) {
  if (ranks() < 2) return;  // there is no worker
  for (const ServerMode mode : kServerModes) {
    GetParam().run([&](Communicator& self) {
      const bool is_server = self.rank() == Rank{0};
      const std::uint64_t bytes = kElements * sizeof(float);
      std::array<std::uint64_t, 3> sent{};  // before a session begins, and before it is served
      if (is_server) {
        ParameterServer server(self, options(mode), first_values());
        sent[0] = self.sent().value();
        server.begin(kPushes);
        sent[1] = self.sent().value();
        server.serve(add_pushed);
      } else {
        ParameterWorker worker(self, options(mode));
        sent[0] = self.sent().value();
        worker.begin(kPushes);
        sent[1] = self.sent().value();
        work(worker, mode, self.rank().value());
      }
      sent[2] = self.sent().value();
      const bool last = self.rank() == Rank{ranks() - 1};
      EXPECT_EQ(sent[1] - sent[0], 4 * workers() + (last ? 0 : bytes));
      EXPECT_EQ(sent[2] - sent[1], bytes * kPushes * (is_server ? workers() : 1)) << name_of(mode);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ParameterServers, testing::ValuesIn(groups()), name_of_group);

}  // namespace
}  // namespace spillway::comm::parameter_server_test
