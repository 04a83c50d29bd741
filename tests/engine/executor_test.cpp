// The executor with a backend whose events do not wake the control thread, as CUDA's do not.
#include "runtime/engine/step/executor.hpp"

#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "offload/host/host_backend.hpp"

namespace spillway::engine::executor_test {
namespace {

using plan::Lane;
using plan::Op;
using plan::OpIndex;

/// Each op waits for the one before it, on alternating streams.
plan::StepPlan chain(std::uint32_t length) {
  plan::StepPlan chain;
  for (std::uint32_t index = 0; index < length; ++index) {
    Op op;
    op.lane = index % 2 == 0 ? Lane::gpu : Lane::h2d;
    op.block = index;
    op.first_dependency = static_cast<std::uint32_t>(chain.dependencies.size());
    op.dependency_count = index == 0 ? 0 : 1;
    if (index > 0) chain.dependencies.push_back(index - 1);
    chain.ops.push_back(op);
  }
  return chain;
}

class RecordingPerformer final : public OpPerformer {
 public:
  void begin(const plan::StepPlan&) override {}
  [[nodiscard]] bool skips(const Op&) const override { return false; }
  void enqueue(const Op& op, offload::Stream& stream) override {
    stream.submit([this, block = op.block] { ran_.push_back(block); });
  }
  [[nodiscard]] Ticket start(const Op&) override { return {}; }
  [[nodiscard]] const std::vector<std::uint32_t>& ran() const { return ran_; }

 private:
  std::vector<std::uint32_t> ran_;
};

/// The host's backend, which counts the events that it makes.
class EventCounter final : public offload::DeviceBackend {
 public:
  explicit EventCounter(WakeSignal& wake)
      : inner_(offload::make_host_backend(
            {.device_capacity = 1_MiB, .pinned_capacity = 1_MiB, .wake = &wake})) {}
  [[nodiscard]] std::string_view name() const override { return inner_->name(); }
  [[nodiscard]] std::byte* allocate(offload::MemoryKind kind, Bytes size) override {
    return inner_->allocate(kind, size);
  }
  [[nodiscard]] std::byte* map_shared(const offload::SharedPages& pages) override {
    return inner_->map_shared(pages);
  }
  void deallocate(offload::MemoryKind kind, std::byte* address, Bytes size) noexcept override {
    inner_->deallocate(kind, address, size);
  }
  [[nodiscard]] std::unique_ptr<offload::Stream> make_stream(std::string_view name,
                                                             offload::Urgency urgency) override {
    return inner_->make_stream(name, urgency);
  }
  [[nodiscard]] std::unique_ptr<offload::Event> make_event() override {
    ++events_;
    return inner_->make_event();
  }
  [[nodiscard]] offload::MemoryUsage usage(offload::MemoryKind kind) const override {
    return inner_->usage(kind);
  }
  [[nodiscard]] offload::Capabilities capabilities() const override {
    return inner_->capabilities();
  }
  [[nodiscard]] std::size_t events() const { return events_; }

 private:
  std::unique_ptr<offload::DeviceBackend> inner_;
  std::size_t events_ = 0;
};

std::vector<std::uint32_t> zero_to(std::uint32_t count) {
  std::vector<std::uint32_t> numbers(count);
  for (std::uint32_t i = 0; i < count; ++i) numbers[i] = i;
  return numbers;
}

/// The shortest of five runs, so that a busy machine does not look like a long sleep. Every run
/// does the ops in order.
double shortest_run(offload::DeviceBackend& backend, WakeSignal& wake) {
  constexpr std::uint32_t kOps = 400;
  const plan::StepPlan plan = chain(kOps);
  Streams streams(backend);
  Executor executor(plan, streams, wake);
  double shortest = 1e9;
  for (int run = 0; run < 5; ++run) {
    RecordingPerformer performer;
    executor.run(performer);
    EXPECT_EQ(performer.ran(), zero_to(kOps));
    shortest = std::min(shortest, executor.seconds());
  }
  return shortest;
}

// The executor issues 8 ops of a lane ahead, so that 400 ops take about 25 of its sleeps; were they
// the longest ones, of 50 ms, that would be 1.25 seconds. Else it is a tenth of one at most.
constexpr double kNoLongSleeps = 0.6;

TEST(Executor, AsksSoonWhereEventsDoNotWake) {
  WakeSignal wake;
  const auto backend =
      offload::make_host_backend({.device_capacity = 1_MiB, .pinned_capacity = 1_MiB});
  ASSERT_FALSE(backend->capabilities().wakes);  // made without a WakeSignal
  EXPECT_LT(shortest_run(*backend, wake), kNoLongSleeps);
}

TEST(Executor, IsWokenByABackendThatWakes) {
  WakeSignal wake;
  const auto backend = offload::make_host_backend(
      {.device_capacity = 1_MiB, .pinned_capacity = 1_MiB, .wake = &wake});
  ASSERT_TRUE(backend->capabilities().wakes);
  EXPECT_LT(shortest_run(*backend, wake), kNoLongSleeps);
}

/// The timer slack of the thread that issues ops, as it is then.
class SlackReader final : public OpPerformer {
 public:
  void begin(const plan::StepPlan&) override {}
  [[nodiscard]] bool skips(const Op&) const override { return false; }
  void enqueue(const Op&, offload::Stream&) override { slack_ns_ = now(); }
  [[nodiscard]] Ticket start(const Op&) override { return {}; }
  [[nodiscard]] int slack_ns() const { return slack_ns_; }
  [[nodiscard]] static int now() { return ::prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL); }

 private:
  int slack_ns_ = 0;
};

// With Linux's 50 us more, a poll every 50 us is one every 119.
TEST(Executor, PollsOnTimeAndLeavesItsThreadAsItWas) {
  std::thread([] {
    ::prctl(PR_SET_TIMERSLACK, 40'000UL, 0UL, 0UL, 0UL);
    WakeSignal wake;
    const auto backend =
        offload::make_host_backend({.device_capacity = 1_MiB, .pinned_capacity = 1_MiB});
    Streams streams(*backend);
    Executor executor(chain(1), streams, wake);
    SlackReader reader;
    executor.run(reader);
    EXPECT_EQ(reader.slack_ns(), 1000);
    EXPECT_EQ(SlackReader::now(), 40'000);
  }).join();
}

/// Counter of the ops that are enqueued and have not run while the first of them takes its time.
class PendingCounter final : public OpPerformer {
 public:
  void begin(const plan::StepPlan&) override {}
  [[nodiscard]] bool skips(const Op&) const override { return false; }
  void enqueue(const Op& op, offload::Stream& stream) override {
    most_ = std::max(most_, ++pending_);
    stream.submit([this, first = op.block == 0] {
      if (first) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      --pending_;
    });
  }
  [[nodiscard]] Ticket start(const Op&) override { return {}; }
  [[nodiscard]] int most() const { return most_; }

 private:
  std::atomic<int> pending_ = 0;
  int most_ = 0;
};

int most_pending(plan::OpKind kind) {
  WakeSignal wake;
  const auto backend = offload::make_host_backend(
      {.device_capacity = 1_MiB, .pinned_capacity = 1_MiB, .wake = &wake});
  plan::StepPlan plan;
  for (std::uint32_t index = 0; index < 20; ++index) {
    Op op;
    op.kind = kind;
    op.lane = Lane::gpu;
    op.block = index;
    plan.ops.push_back(op);
  }
  Streams streams(*backend);
  Executor executor(plan, streams, wake);
  PendingCounter performer;
  executor.run(performer);
  return performer.most();
}

// A CUDA stream has room for about a thousand launches, and a pass makes hundreds.
TEST(Executor, IssuesFewPassesAheadOfTheDevice) {
  EXPECT_EQ(most_pending(plan::OpKind::round_gradient), 8);
  for (const auto kind : {plan::OpKind::forward, plan::OpKind::backward, plan::OpKind::loss}) {
    EXPECT_EQ(most_pending(kind), 6);
  }
}

/// The second op of a stream, which lasts until a worker's op has started, though not for ever.
class WorkerAwaited final : public OpPerformer {
 public:
  void begin(const plan::StepPlan&) override {}
  [[nodiscard]] bool skips(const Op&) const override { return false; }
  void enqueue(const Op& op, offload::Stream& stream) override {
    stream.submit([this, second = op.block == 1] {
      if (second) met_ = started_.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
    });
  }
  [[nodiscard]] Ticket start(const Op&) override {
    start_.set_value();
    return {};
  }
  [[nodiscard]] bool met() const { return met_; }

 private:
  std::promise<void> start_;
  std::future<void> started_ = start_.get_future();
  bool met_ = false;
};

TEST(Executor, StartsWhatWaitsForAnOpWhileTheNextOneOfItsStreamRuns) {
  WakeSignal wake;
  const auto backend = offload::make_host_backend(
      {.device_capacity = 1_MiB, .pinned_capacity = 1_MiB, .wake = &wake});
  plan::StepPlan plan;
  for (const Lane lane : {Lane::gpu, Lane::gpu, Lane::cpu}) {
    Op op;
    op.lane = lane;
    op.block = static_cast<std::uint32_t>(plan.ops.size());
    plan.ops.push_back(op);
  }
  plan.dependencies.push_back(0);
  plan.ops.back().dependency_count = 1;
  Streams streams(*backend);
  Executor executor(plan, streams, wake);
  WorkerAwaited performer;
  executor.run(performer);
  EXPECT_TRUE(performer.met());
}

TEST(Executor, CallsACopyExposedThatNoPassHides) {
  WakeSignal wake;
  const auto backend = offload::make_host_backend(
      {.device_capacity = 1_MiB, .pinned_capacity = 1_MiB, .wake = &wake});
  plan::StepPlan plan = chain(1);
  plan.ops[0].lane = Lane::h2d;
  Streams streams(*backend);
  Executor executor(plan, streams, wake);
  RecordingPerformer performer;
  executor.run(performer);
  const auto [start, end] = executor.timings()[0];
  EXPECT_LT(start, end);
  Exposed expected{};
  expected[static_cast<std::size_t>(Lane::h2d)] = end - start;
  EXPECT_EQ(executor.exposed(), expected);
}

TEST(Executor, MakesNoMoreEventsForMoreOpsOrPlans) {
  WakeSignal wake;
  EventCounter backend(wake);
  Streams streams(backend);
  const std::size_t events = backend.events();
  EXPECT_EQ(events, 3 * kInFlight);  // the lanes of the device
  for (const std::uint32_t ops : {1U, 10U, 1000U}) {
    const plan::StepPlan plan = chain(ops);
    Executor executor(plan, streams, wake);
    for (int run = 0; run < 2; ++run) {
      RecordingPerformer performer;
      executor.run(performer);
      EXPECT_EQ(performer.ran(), zero_to(ops));
    }
  }
  EXPECT_EQ(backend.events(), events);
}

}  // namespace
}  // namespace spillway::engine::executor_test
