// What only ranks that are threads of one test can show of a parameter server: given orders of
// pushes, workers that are slow or fail, and options that differ.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>

#include "comm/baselines/parameter_server.hpp"
#include "comm/threads/thread_group.hpp"
#include "runtime/base/error.hpp"
#include "tests/support/allocation_counter.hpp"

namespace spillway::comm::parameter_server_order_test {
namespace {

using testing::HasSubstr;

using Floats = std::vector<float>;

const ThreadGroupOptions kPatient{.communicator = {.timeout_ms = 20'000}};

/// Returns how a group of so many ranks fails, all of which run `body`.
std::string failure_of(std::uint32_t ranks, const std::function<void(Communicator&)>& body) {
  try {
    ThreadGroup(ranks, kPatient).run(body);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// Returns the ranks whose pushes a server of one session has applied, in order.
std::vector<std::uint32_t> serve(Communicator& self, const ServerOptions& options,
                                 std::uint32_t pushes) {
  std::vector<std::uint32_t> order;
  ParameterServer server(self, options, Floats(options.elements));
  server.begin(pushes);
  server.serve([&](std::span<float> values, std::span<const float> pushed, const Push& push) {
    order.push_back(push.worker.value());
    EXPECT_LE(push.staleness, options.staleness);
    add_pushed(values, pushed, push);
  });
  return order;
}

/// Lets threads go on one after another, in a given order.
class Turns {
 public:
  explicit Turns(std::vector<std::uint32_t> order) : order_(std::move(order)) {}

  void take(std::uint32_t rank, const std::function<void()>& turn) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return order_[next_] == rank; });
    lock.unlock();
    turn();
    lock.lock();
    ++next_;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::vector<std::uint32_t> order_;
  std::size_t next_ = 0;
};

TEST(ParameterServer, AppliesPushesInTheOrderInWhichTheyCome) {
  const std::vector<std::uint32_t> given{3, 1, 1, 2, 3, 1, 2, 2, 3};
  Turns turns(given);
  const ServerOptions options{
      .mode = ServerMode::asynchronous, .elements = 1, .staleness = 4, .local_steps = 1};
  ThreadGroup(4, kPatient).run([&](Communicator& self) {
    if (self.rank() == Rank{0}) {
      EXPECT_EQ(serve(self, options, 3), given);
      return;
    }
    ParameterWorker worker(self, options);
    worker.begin(3);
    const Floats one{static_cast<float>(self.rank().value())};
    for (int i = 0; i < 3; ++i) turns.take(self.rank().value(), [&] { worker.push(one); });
  });
}

// Worker 2 computes until worker 1 has pushed as often as the bound allows and once more. That push
// comes first and is taken second.
TEST(ParameterServer, ASlowWorkerBlocksAnotherWhenTheBoundDemandsAndNotBefore) {
  constexpr std::uint32_t kBound = 3;
  std::promise<void> ahead;
  const ServerOptions options{
      .mode = ServerMode::asynchronous, .elements = 1, .staleness = kBound, .local_steps = 1};
  ThreadGroup(3, kPatient).run([&](Communicator& self) {
    const Floats one{1};
    if (self.rank() == Rank{0}) {
      EXPECT_THAT(serve(self, options, kBound + 1),
                  testing::ElementsAre(1, 1, 1, 2, testing::_, testing::_, testing::_, testing::_));
      return;
    }
    ParameterWorker worker(self, options);
    worker.begin(kBound + 1);
    for (std::uint32_t i = 0; i <= kBound; ++i) {
      if (self.rank() == Rank{1} && i == kBound) ahead.set_value();
      if (self.rank() == Rank{2} && i == 0) {
        ahead.get_future().wait();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the other's push has come
      }
      worker.push(one);
    }
  });
}

// While the server applies a push of worker 3, workers 1 and 2 push.
TEST(ParameterServer, PrefersTheWorkerThatHasPushedLeast) {
  std::promise<void> ahead;
  std::promise<void> busy;
  const std::shared_future<void> is_busy = busy.get_future().share();
  const ServerOptions options{
      .mode = ServerMode::asynchronous, .elements = 1, .staleness = 9, .local_steps = 1};
  ThreadGroup(4, kPatient).run([&](Communicator& self) {
    const std::uint32_t rank = self.rank().value();
    const Floats one{1};
    if (rank == 0) {
      std::vector<std::uint32_t> order;
      ParameterServer server(self, options, one);
      server.begin(3);
      server.serve([&](std::span<float>, std::span<const float>, const Push& push) {
        order.push_back(push.worker.value());
        if (order.size() != 3) return;
        busy.set_value();
        std::this_thread::sleep_for(std::chrono::milliseconds(100));  // both pushes have come
      });
      order.resize(4);
      EXPECT_EQ(order, (std::vector<std::uint32_t>{1, 1, 3, 2}));
      return;
    }
    ParameterWorker worker(self, options);
    worker.begin(3);
    for (int i = 0; i < 3; ++i) {
      if (rank == 1 && i == 2) ahead.set_value();
      if (rank == 3 && i == 0) ahead.get_future().wait();
      if ((rank == 1 && i == 2) || (rank == 2 && i == 0) || (rank == 3 && i == 1)) is_busy.wait();
      worker.push(one);
    }
  });
}

/// Part of a least-squares problem with a solution that all parts share.
struct Problem {
  static constexpr std::size_t kRows = 16;
  static constexpr std::size_t kColumns = 3;
  static constexpr float kSolution[kColumns] = {1.0F, -2.0F, 0.5F};

  explicit Problem(std::uint32_t rank) {
    std::mt19937 random(rank);
    std::uniform_real_distribution<float> values(-1, 1);
    for (float& value : matrix) value = values(random);
  }

  [[nodiscard]] Floats gradient(std::span<const float> x) const {
    Floats gradient(kColumns);
    for (std::size_t row = 0; row < kRows; ++row) {
      float residual = 0;
      for (std::size_t i = 0; i < kColumns; ++i) {
        residual += matrix[row * kColumns + i] * (x[i] - kSolution[i]);
      }
      for (std::size_t i = 0; i < kColumns; ++i) {
        gradient[i] += matrix[row * kColumns + i] * residual;
      }
    }
    return gradient;
  }

  Floats matrix = Floats(kRows * kColumns);
};

void descend(std::span<float> values, std::span<const float> gradient) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] -= 0.02F * gradient[i];
}

TEST(ParameterServer, SolvesALeastSquaresProblemInEachMode) {
  constexpr std::uint32_t kPushes = 400;
  for (const ServerMode mode : kServerModes) {
    const ServerOptions options{
        .mode = mode, .elements = Problem::kColumns, .staleness = 4, .local_steps = 3};
    ThreadGroup(4, kPatient).run([&](Communicator& self) {
      if (self.rank() == Rank{0}) {
        ParameterServer server(self, options, Floats(Problem::kColumns));
        server.begin(kPushes);
        server.serve([&](std::span<float> values, std::span<const float> pushed, const Push& push) {
          mode == ServerMode::geo ? add_pushed(values, pushed, push) : descend(values, pushed);
        });
        // The smallest eigenvalue of a part is above 2: each push takes 4 % off the error or more,
        // and 400 of them leave less than what fp32 rounds.
        for (std::size_t i = 0; i < Problem::kColumns; ++i) {
          EXPECT_NEAR(server.values()[i], Problem::kSolution[i], 1e-4) << name_of(mode);
        }
        return;
      }
      ParameterWorker worker(self, options);
      const Problem problem(self.rank().value());
      worker.begin(kPushes);
      for (std::uint32_t i = 0; i < kPushes; ++i) {
        if (mode != ServerMode::geo) {
          worker.push(problem.gradient(worker.values()));
          continue;
        }
        do {
          descend(worker.values(), problem.gradient(worker.values()));
        } while (!worker.end_local_step());
      }
    });
  }
}

TEST(ParameterServer, AWorkerThatFailsEndsTheOthersWithItsName) {
  for (const ServerMode mode : kServerModes) {
    const ServerOptions options{.mode = mode, .elements = 4, .staleness = 4, .local_steps = 1};
    const auto expect_named = [](const std::function<void()>& call) {
      try {
        call();
        ADD_FAILURE() << "nothing was thrown";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::device_error);
        EXPECT_THAT(error.what(), HasSubstr("rank 2 has abandoned the group: out of paper"));
      }
    };
    const std::string cause = failure_of(3, [&](Communicator& self) {
      if (self.rank() == Rank{0}) return expect_named([&] { serve(self, options, 4); });
      ParameterWorker worker(self, options);
      worker.begin(4);
      if (self.rank() == Rank{2}) throw std::runtime_error("out of paper");
      expect_named([&] {
        for (int i = 0; i < 4; ++i) {
          mode == ServerMode::geo ? static_cast<void>(worker.end_local_step())
                                  : worker.push(Floats(4));
        }
        self.barrier().wait();
      });
    });
    EXPECT_EQ(cause, "out of paper");
  }
}

TEST(ParameterServer, NamesTheWorkersOneOfWhichDoesNotAnswer) {
  const ServerOptions options{
      .mode = ServerMode::asynchronous, .elements = 4, .staleness = 4, .local_steps = 1};
  std::promise<void> over;
  std::shared_future<void> is_over = over.get_future().share();
  try {
    ThreadGroup(3, {.communicator = {.timeout_ms = 100}}).run([&](Communicator& self) {
      if (self.rank() == Rank{0}) {
        try {
          serve(self, options, 1);
        } catch (...) {
          over.set_value();
          throw;
        }
      }
      ParameterWorker worker(self, options);
      worker.begin(1);
      is_over.wait();
    });
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("waited 0.1 s for rank 1 or 2 in receive"));
  }
}

TEST(ParameterServer, FindsWhatRanksDisagreeInBeforeTheyPush) {
  const auto failure_with = [](const std::function<ServerOptions(Rank)>& options,
                               std::uint32_t pushes_of_2 = 2) {
    return failure_of(3, [&](Communicator& self) {
      const ServerOptions mine = options(self.rank());
      if (self.rank() == Rank{0}) {
        serve(self, mine, 2);
      } else {
        ParameterWorker worker(self, mine);
        worker.begin(self.rank() == Rank{2} ? pushes_of_2 : 2);
        while (true) worker.push(Floats(mine.elements));
      }
    });
  };
  const ServerOptions plain{
      .mode = ServerMode::asynchronous, .elements = 4, .staleness = 2, .local_steps = 1};
  const auto with_rank_1 = [&](const std::function<void(ServerOptions&)>& change) {
    return failure_with([&, change](Rank rank) {
      ServerOptions options = plain;
      if (rank == Rank{1}) change(options);
      return options;
    });
  };
  EXPECT_THAT(with_rank_1([](ServerOptions& of_1) { of_1.mode = ServerMode::geo; }),
              HasSubstr("rank 1 has mode: geo, rank 0 has mode: asynchronous"));
  EXPECT_THAT(with_rank_1([](ServerOptions& of_1) { of_1.elements = 5; }),
              HasSubstr("rank 1 has elements: 5, rank 0 has elements: 4"));
  EXPECT_THAT(with_rank_1([](ServerOptions& of_1) { of_1.staleness = 3; }),
              HasSubstr("rank 1 has staleness: 3, rank 0 has staleness: 2"));
  EXPECT_THAT(failure_with([&](Rank) { return plain; }, 3),
              HasSubstr("rank 2 begins a session of 3 pushes, rank 0 one of 2"));
  EXPECT_THAT(failure_with([&](Rank) { return plain; }),
              HasSubstr("a worker pushes more often than its session says"));
}

TEST(ParameterServer, BeginsNoSessionBeforeTheLastIsOver) {
  for (const ServerMode mode : kServerModes) {
    for (const Rank hasty : {Rank{0}, Rank{1}}) {
      const ServerOptions options{.mode = mode, .elements = 4, .staleness = 1, .local_steps = 1};
      const std::string message = failure_of(2, [&](Communicator& self) {
        if (self.rank() == Rank{0}) {
          ParameterServer server(self, options, Floats(4));
          server.begin(1);
          if (hasty == Rank{0}) server.begin(1);
          server.serve(add_pushed);
        } else {
          ParameterWorker worker(self, options);
          worker.begin(1);
          if (hasty == Rank{1}) worker.begin(1);
          self.barrier().wait();
        }
      });
      EXPECT_THAT(message, HasSubstr("begins before the one before it is over")) << name_of(mode);
    }
  }
}

TEST(ParameterServer, RefusesOptionsThatCannotBe) {
  const auto failure_with = [](std::uint32_t ranks, const ServerOptions& options) {
    return failure_of(ranks, [&](Communicator& self) {
      if (self.rank() == Rank{0}) {
        ParameterServer(self, options, Floats(options.elements));
      } else {
        ParameterWorker(self, options);
      }
    });
  };
  EXPECT_THAT(failure_with(4, {.mode = ServerMode::asynchronous, .staleness = 1}),
              HasSubstr("of 3 workers that pull the same values the last push is stale by 2"));
  EXPECT_THAT(failure_with(2, {.mode = ServerMode::geo, .local_steps = 0}),
              HasSubstr("use at least 1"));
  EXPECT_THAT(failure_with(1, {}), HasSubstr("needs a second rank"));
  EXPECT_EQ(failure_with(4, {.mode = ServerMode::asynchronous, .staleness = 2}),
            "nothing was thrown");
}

TEST(ParameterServer, ASessionAllocatesNothing) {
  if (!test_support::AllocationCounter::works()) GTEST_SKIP() << "a sanitizer owns operator new";
  for (const ServerMode mode : kServerModes) {
    const ServerOptions options{.mode = mode, .elements = 4, .staleness = 2, .local_steps = 1};
    ThreadGroup(3, kPatient).run([&](Communicator& self) {
      const Floats values(4);
      std::optional<ParameterServer> server;
      std::optional<ParameterWorker> worker;
      std::optional<test_support::AllocationCounter> counter;
      if (self.rank() == Rank{0}) {
        server.emplace(self, options, values);
        server->begin(3);
      } else {
        worker.emplace(self, options);
        worker->begin(3);
      }
      self.barrier().wait();
      if (server.has_value()) counter.emplace();
      self.barrier().wait();
      if (server.has_value()) server->serve(add_pushed);
      for (int i = 0; worker.has_value() && i < 3; ++i) {
        mode == ServerMode::geo ? static_cast<void>(worker->end_local_step())
                                : worker->push(values);
      }
      self.barrier().wait();
      if (counter.has_value()) {
        EXPECT_EQ(counter->allocations(), 0) << name_of(mode);
      }
      counter.reset();
      self.barrier().wait();
    });
  }
}

}  // namespace
}  // namespace spillway::comm::parameter_server_order_test
