// Threads over memory nodes: how many where, and that a part stays on its node.
#include "cpu_adam/detail/worker_nodes.hpp"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <new>
#include <stdexcept>
#include <thread>

#include "cpu_adam/detail/arena.hpp"
#include "tests/cpu_adam/update_case.hpp"

namespace spillway::cpu_adam::test::worker_nodes_test {
namespace {

using detail::Arena;
using detail::spread_over_nodes;
using detail::WorkerNode;

std::vector<std::size_t> threads_of(const std::vector<WorkerNode>& nodes) {
  std::vector<std::size_t> threads;
  for (const WorkerNode& node : nodes) threads.push_back(node.threads);
  return threads;
}

TEST(WorkerNodes, ShareThreadsInProportionToCores) {
  const Topology two = read_topology({.synthetic = "node:2 core:4 pu:2"});
  using Threads = std::vector<std::size_t>;
  EXPECT_EQ(threads_of(spread_over_nodes(two, 8, Binding::node)), Threads({4, 4}));
  EXPECT_EQ(threads_of(spread_over_nodes(two, 2, Binding::node)), Threads({1, 1}));
  EXPECT_EQ(threads_of(spread_over_nodes(two, 3, Binding::core)), Threads({1, 2}));
  EXPECT_EQ(threads_of(spread_over_nodes(two, 1, Binding::node)), Threads({1}));
  EXPECT_EQ(threads_of(spread_over_nodes(two, 20, Binding::node)), Threads({10, 10}));
  EXPECT_EQ(threads_of(spread_over_nodes(two, 8, Binding::none)), Threads({8}));
}

TEST(WorkerNodes, BindToTheNodeOrToACoreEach) {
  const Topology two = read_topology({.synthetic = "node:2 core:4 pu:2"});
  for (const WorkerNode& node : spread_over_nodes(two, 8, Binding::node)) {
    ASSERT_EQ(node.places.size(), 1U);
    EXPECT_EQ(node.places.front().size(), 8U);  // four cores of two hardware threads
  }
  for (const WorkerNode& node : spread_over_nodes(two, 8, Binding::core)) {
    EXPECT_EQ(node.places.size(), 4U);
  }
  const Topology one = read_topology({.synthetic = "node:1 core:4 pu:1"});
  EXPECT_TRUE(spread_over_nodes(one, 4, Binding::node).front().places.empty());
  EXPECT_EQ(spread_over_nodes(one, 4, Binding::core).front().places.size(), 4U);
}

/// Two nodes made of this machine's processors: the same one twice where there is only one.
std::vector<WorkerNode> two_nodes() {
  const Topology machine = read_topology();
  const ProcessorIndex first = machine.cores.front().processors.front();
  const ProcessorIndex last = machine.cores.back().processors.back();
  return {{.threads = 1, .places = {{first}}}, {.threads = 1, .places = {{last}}}};
}

// Orders the threads where ThreadSanitizer sees it, as WorkerPool does: it cannot look into oneTBB.
std::atomic<int> ordered = 0;

struct Seen {
  std::atomic<int> calls[4] = {};
  std::atomic<int> processors[4] = {};
};

TEST(WorkerNodes, APartRunsOnItsNodeEveryTime) {
  const std::vector<WorkerNode> nodes = two_nodes();
  Arena arena(nodes);
  Seen seen;
  struct Context {
    const std::vector<WorkerNode>& nodes;
    Arena& arena;
    Seen& seen;
  } context{nodes, arena, seen};
  arena.enter(
      [](void* given) {
        auto& [expected, inner, found] = *static_cast<Context*>(given);
        for (int round = 0; round < 50; ++round) {
          ++ordered;
          inner.for_each_index(
              4,
              [](void* target, std::size_t i) {
                ++ordered;
                auto& record = *static_cast<Seen*>(target);
                ++record.calls[i];
                record.processors[i] = ::sched_getcpu();
              },
              &found);
          for (std::size_t i = 0; i < 4; ++i) {
            const auto& places = expected[i / 2].places;
            EXPECT_EQ(static_cast<std::uint32_t>(found.processors[i]),
                      places.front().front().value());
          }
        }
      },
      &context);
  for (const auto& calls : seen.calls) EXPECT_EQ(calls, 50);
}

TEST(WorkerNodes, AFailureOnAnotherNodeIsRethrownAndTheNextRoundRuns) {
  Arena arena(two_nodes());
  struct Context {
    Arena& arena;
    bool caught;
    std::atomic<int> calls;
  } context{arena, false, 0};
  arena.enter(
      [](void* given) {
        auto& [inner, caught, calls] = *static_cast<Context*>(given);
        try {
          inner.for_each_index(
              2,
              [](void*, std::size_t i) {
                if (i == 1) throw std::runtime_error("the second node failed");
              },
              nullptr);
        } catch (const std::runtime_error&) {
          caught = true;
        }
        ++ordered;
        inner.for_each_index(
            2,
            [](void* count, std::size_t) {
              ++ordered;
              ++*static_cast<std::atomic<int>*>(count);
            },
            &calls);
      },
      &context);
  EXPECT_TRUE(context.caught);
  EXPECT_EQ(context.calls, 2);
}

thread_local int until_refused = -1;           // allocations of oneTBB's; below 0: none is refused
std::atomic<bool> others_are_refused = false;  // to threads but the one of main

// oneTBB finds no library for its memory in this program, and so takes it from memalign.
extern "C" void* dlopen(const char* /*path*/, int /*mode*/) noexcept { return nullptr; }
extern "C" void* memalign(std::size_t alignment, std::size_t size) noexcept {
  if (until_refused >= 0 && until_refused-- == 0) return nullptr;
  if (others_are_refused && ::gettid() != ::getpid()) return nullptr;
  return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

/// Has three nodes work while an allocation of oneTBB's is refused; returns whether it failed for
/// that. All that was begun is over then, and another round runs.
bool fails_with_refused_allocation(int number) {
  Arena arena(std::vector<WorkerNode>(3, {.threads = 1, .places = {}}));
  struct Context {
    Arena& arena;
    int number;
    std::atomic<int> running = 0;
    std::atomic<int> calls = 0;
    bool failed = false;
  } context{arena, number};
  arena.enter(
      [](void* given) {
        auto& it = *static_cast<Context*>(given);
        ++ordered;
        until_refused = it.number;
        try {
          it.arena.for_each_index(
              3,
              [](void* running, std::size_t) {
                ++ordered;
                ++*static_cast<std::atomic<int>*>(running);
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
                --*static_cast<std::atomic<int>*>(running);
              },
              &it.running);
        } catch (const std::bad_alloc&) {
          it.failed = true;
        }
        until_refused = -1;
        EXPECT_EQ(it.running, 0);
        ++ordered;
        it.arena.for_each_index(
            3,
            [](void* calls, std::size_t) {
              ++ordered;
              ++*static_cast<std::atomic<int>*>(calls);
            },
            &it.calls);
      },
      &context);
  EXPECT_EQ(context.calls, 3);
  return context.failed;
}

TEST(WorkerNodes, AFailureToHandOutWorkIsThrownOnceTheRestIsOver) {
  int failures = 0;
  for (bool fails = true; fails; failures += fails ? 1 : 0) {
    std::future<bool> round =
        std::async(std::launch::async, fails_with_refused_allocation, failures);
    if (round.wait_for(std::chrono::seconds(10)) != std::future_status::ready) {
      ADD_FAILURE() << "work that was never handed out is waited for";
      std::abort();
    }
    fails = round.get();
  }
  EXPECT_GT(failures, 1);
}

// The first allocation only: of later ones oneTBB 2021.8 frees what it has not set.
TEST(WorkerNodes, AFailureOfAPoolsThreadToEnterIsThrownByThePool) {
  others_are_refused = true;
  EXPECT_THROW(WorkerPool({.threads = 1}), std::bad_alloc);
  others_are_refused = false;
  WorkerPool pool({.threads = 1});
  bool ran = false;
  pool.submit([&ran] { ran = true; }).wait();
  EXPECT_TRUE(ran);
}

TEST(WorkerNodes, ThreadGetsItsOwnBindingBack) {
  cpu_set_t before;
  cpu_set_t after;
  ::sched_getaffinity(0, sizeof before, &before);
  {
    Arena arena(two_nodes());
    arena.enter([](void*) {}, nullptr);
  }
  ::sched_getaffinity(0, sizeof after, &after);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

}  // namespace
}  // namespace spillway::cpu_adam::test::worker_nodes_test
