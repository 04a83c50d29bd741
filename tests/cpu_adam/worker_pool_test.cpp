// The queue of CPU tasks: order, errors, partition, denormals, and threads that change nothing.
#include "cpu_adam/worker_pool.hpp"

#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "runtime/base/topology.hpp"
#include "tests/cpu_adam/update_case.hpp"

namespace spillway::cpu_adam::test::worker_pool_test {
namespace {

using namespace std::chrono_literals;

TEST(WorkerPool, RunsTasksOneAfterAnotherInSubmissionOrder) {
  WorkerPool pool({.threads = 2, .queue_depth = 4});
  std::vector<int> order;  // no lock: tasks must not overlap, and wait() must order us after them
  std::vector<Ticket> tickets;
  tickets.reserve(1000);
  for (int i = 0; i < 1000; ++i) {
    tickets.push_back(pool.submit([&order, i] { order.push_back(i); }));
  }
  tickets.back().wait();
  ASSERT_EQ(order.size(), 1000U);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  for (Ticket& ticket : tickets) EXPECT_TRUE(ticket.ready());
}

TEST(WorkerPool, SaysReadyOnlyOnceTheTaskIsOver) {
  WorkerPool pool({.threads = 1});
  std::atomic<bool> go = false;
  Ticket ticket = pool.submit([&go] {
    while (!go) std::this_thread::yield();
  });
  EXPECT_TRUE(ticket.pending());
  EXPECT_FALSE(ticket.ready());
  go = true;
  while (!ticket.ready()) std::this_thread::yield();
  ticket.wait();
  EXPECT_FALSE(ticket.pending());
}

TEST(WorkerPool, SubmitWaitsForAFreeEntryOfAFullQueue) {
  WorkerPool pool({.threads = 1, .queue_depth = 2});
  std::atomic<bool> go = false;
  std::atomic<int> submitted = 0;
  std::thread control([&] {
    std::vector<Ticket> tickets;
    for (int i = 0; i < 3; ++i) {
      tickets.push_back(pool.submit([&go] {
        while (!go) std::this_thread::yield();
      }));
      ++submitted;
    }
  });
  while (submitted < 2) std::this_thread::yield();
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(submitted, 2);
  go = true;
  control.join();
  EXPECT_EQ(submitted, 3);
}

TEST(WorkerPool, RethrowsATasksErrorAtWaitAndRunsTheNext) {
  WorkerPool pool({.threads = 2});
  Ticket bad = pool.submit([] { throw std::runtime_error("disk on fire"); });
  int ran = 0;
  Ticket good = pool.submit([&ran] { ran = 1; });
  good.wait();
  EXPECT_EQ(ran, 1);
  EXPECT_TRUE(bad.ready());
  try {
    bad.wait();
    FAIL() << "the error was lost";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "disk on fire");
  }
}

TEST(WorkerPool, RethrowsAnErrorOfAnyPartAtWait) {
  WorkerPool pool({.threads = 3});
  Ticket ticket = pool.submit([&pool] {
    pool.parallel_for(300, 1, [](std::size_t first, std::size_t) {
      if (first > 0) throw std::runtime_error("one part failed");
    });
  });
  EXPECT_THROW(ticket.wait(), std::runtime_error);
  pool.submit([] {}).wait();
}

TEST(WorkerPool, KeepsAnErrorUntilItsTicketIsWaitedForHoweverManyTasksFollow) {
  WorkerPool pool({.threads = 1, .queue_depth = 4});
  Ticket bad = pool.submit([] { throw std::runtime_error("first"); });
  for (int i = 0; i < 3; ++i) pool.submit([] {}).wait();
  // The queue has come round to the failed task's entry.
  EXPECT_THROW(static_cast<void>(pool.submit([] {})), std::runtime_error);
  EXPECT_THROW(bad.wait(), std::runtime_error);
  pool.submit([] {}).wait();
}

TEST(WorkerPool, DestroyingATicketWaitsForItsTask) {
  WorkerPool pool({.threads = 1});
  int done = 0;
  {
    const Ticket ticket = pool.submit([&done] {
      std::this_thread::sleep_for(10ms);
      done = 1;
    });
  }
  EXPECT_EQ(done, 1);
}

TEST(WorkerPool, NotifiesTheWakeSignalWhenATaskEnds) {
  WakeSignal wake;
  WorkerPool pool({.threads = 1, .wake = &wake});
  const auto start = std::chrono::steady_clock::now();
  Ticket ticket = pool.submit([] { std::this_thread::sleep_for(5ms); });
  while (!ticket.ready()) wake.wait_for(10s);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
}

TEST(WorkerPool, CutsTheRangeStaticallyAtMultiplesOfTheGrain) {
  for (const std::size_t threads : {1U, 2U, 3U, 8U}) {
    WorkerPool pool({.threads = threads});
    EXPECT_EQ(pool.threads(), threads);
    for (const std::size_t count : {0U, 1U, 99U, 100U, 101U, 1000U, 12345U}) {
      std::mutex mutex;
      std::vector<std::pair<std::size_t, std::size_t>> parts;
      pool.submit([&] {
            pool.parallel_for(count, 100, [&](std::size_t first, std::size_t last) {
              const std::lock_guard lock(mutex);
              parts.emplace_back(first, last);
            });
          })
          .wait();
      std::sort(parts.begin(), parts.end());
      EXPECT_EQ(parts.size(), std::min(threads, (count + 99) / 100));
      std::size_t next = 0;
      for (const auto& [first, last] : parts) {
        EXPECT_EQ(first, next);
        EXPECT_EQ(first % 100, 0U);
        EXPECT_LT(first, last);
        next = last;
      }
      EXPECT_EQ(next, count);
    }
  }
}

TEST(WorkerPool, SpreadsARangeOverAsManyThreadsAsAskedFor) {
  constexpr std::size_t kThreads = 4;  // more than the CPUs of a small machine
  WorkerPool pool({.threads = kThreads});
  std::atomic<std::size_t> arrived = 0;
  // Every part waits for all others: with fewer threads this would not end.
  pool.submit([&] {
        pool.parallel_for(kThreads, 1, [&](std::size_t, std::size_t) {
          ++arrived;
          const auto limit = std::chrono::steady_clock::now() + 30s;
          while (arrived < kThreads && std::chrono::steady_clock::now() < limit) {
            std::this_thread::yield();
          }
        });
      })
      .wait();
  EXPECT_EQ(arrived, kThreads);
}

TEST(WorkerPool, TakesOneThreadACoreByDefault) {
  WorkerPool pool({});
  EXPECT_EQ(pool.threads(), read_topology().cores.size());
}

TEST(WorkerPool, RefusesAnAbsurdNumberOfThreads) {
  EXPECT_THROW(WorkerPool({.threads = 1'000'000}), Error);
}

TEST(WorkerPool, FlushesDenormalsInTasksAndParts) {
  WorkerPool pool({.threads = 2});
  constexpr unsigned kFlags = 0x8040;
  std::atomic<unsigned> task{0};
  std::atomic<unsigned> parts{kFlags};
  pool.submit([&] {
        task = floating_point_control();
        pool.parallel_for(2, 1,
                          [&](std::size_t, std::size_t) { parts &= floating_point_control(); });
      })
      .wait();
  EXPECT_EQ(task & kFlags, kFlags);
  EXPECT_EQ(parts & kFlags, kFlags);
}

TEST(WorkerPool, NumberOfThreadsNeverChangesABitOfTheUpdate) {
  Random random = seeded_random();
  constexpr std::size_t kCount = 100'003;
  const Problem problem = random_problem(random, DType::bf16, kCount);
  const UpdateScalars scalars = make_scalars({.weight_decay = 0.1}, 5, 0.7);
  const Outcome whole =
      run(find_kernel(Isa::scalar, DType::bf16, DType::bf16), scalars, problem, kCount);
  const UpdateFunction update = find_kernel(best_isa(), DType::bf16, DType::bf16).update;
  for (const std::size_t threads : {1U, 2U, 3U, 7U}) {
    WorkerPool pool({.threads = threads});
    Outcome got{.master = problem.master,
                .m = problem.m,
                .v = problem.v,
                .parameters = std::vector<std::byte>(2 * kCount)};
    pool.submit([&] {
          pool.parallel_for(kCount, 4096, [&](std::size_t first, std::size_t last) {
            update(scalars, {.gradient = problem.gradient.data() + 2 * first,
                             .master_in = got.master.data() + first,
                             .m_in = got.m.data() + first,
                             .v_in = got.v.data() + first,
                             .master_out = got.master.data() + first,
                             .m_out = got.m.data() + first,
                             .v_out = got.v.data() + first,
                             .parameters_out = got.parameters.data() + 2 * first,
                             .count = last - first});
          });
        })
        .wait();
    EXPECT_TRUE(same_bits(got, whole, kCount, DType::bf16)) << threads << " threads";
  }
}

}  // namespace
}  // namespace spillway::cpu_adam::test::worker_pool_test
