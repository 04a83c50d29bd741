// The host backend under the contract, and what it promises beyond it.
#include "offload/host/host_backend.hpp"

#include <gtest/gtest.h>
#include <malloc.h>
#include <pthread.h>
#include <time.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <thread>

#include "offload/host/detail/stream_progress.hpp"
#include "offload/host/host_view.hpp"
#include "tests/offload/device_backend_contract.hpp"

namespace spillway::offload::host_backend_test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

BackendUnderTest plain_host(std::size_t depth) {
  return {.name = "host_depth_" + std::to_string(depth), .make = [depth](const BackendLimits& l) {
            return make_host_backend({.device_capacity = l.device_capacity,
                                      .pinned_capacity = l.pinned_capacity,
                                      .stream_depth = depth});
          }};
}
BackendUnderTest throttled_host() {
  return {.name = "host_throttled", .make = [](const BackendLimits& l) {
            return make_host_backend({.device_capacity = l.device_capacity,
                                      .pinned_capacity = l.pinned_capacity,
                                      .link_gigabytes_per_second = 5});
          }};
}
INSTANTIATE_TEST_SUITE_P(Host, DeviceBackendContract,
                         ::testing::Values(plain_host(1024), plain_host(1), throttled_host()),
                         [](const auto& instance) { return instance.param.name; });

std::unique_ptr<DeviceBackend> make_plain() {
  return make_host_backend({.device_capacity = 64_MiB, .pinned_capacity = 64_MiB});
}

/// Opens once; tasks that wait at it hold their stream.
struct Gate {
  std::atomic<bool> open{false};
  void pass() const {
    while (!open.load()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
};

TEST(HostBackend, ShowsDeviceMemoryToItsTasks) {
  const auto backend = make_plain();
  const auto stream = backend->make_stream("compute");
  const DeviceMemory device(*backend, 4000_B);
  const PinnedMemory host(*backend, 4000_B);
  const DeviceSpan<float> numbers = device.device().as<float>();
  stream->submit([numbers] {
    float next = 0;
    for (float& number : host_view(numbers)) number = next++;
  });
  stream->download(host.host(), device.device());
  stream->synchronize();
  float last = 0;
  std::memcpy(&last, host.host().data() + 999 * sizeof(float), sizeof last);
  EXPECT_EQ(last, 999.0F);
}

TEST(HostBackend, AFailureSkipsLaterWorkAndIsToldToEveryoneWhoAsks) {
  const auto backend = make_plain();
  const auto stream = backend->make_stream("failing");
  const auto before = backend->make_event();
  const auto after = backend->make_event();
  int ran = 0;
  stream->submit([&ran] { ++ran; });
  stream->record(*before);
  stream->submit([] { throw Error(ErrorCode::device_error, "first"); });
  stream->submit([] { throw Error(ErrorCode::device_error, "second"); });
  stream->submit([&ran] { ++ran; });
  stream->record(*after);
  for (int i = 0; i < 2; ++i) {
    try {
      stream->synchronize();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "first");
    }
    EXPECT_THROW((void)after->done(), Error);
  }
  EXPECT_TRUE(before->done());  // what was recorded before the failure is good
  EXPECT_EQ(ran, 1);
}

TEST(StreamProgress, TellsAFailureFromItsOwnEntryOn) {
  host::StreamProgress progress;
  progress.advance(nullptr);
  progress.advance(std::make_exception_ptr(Error(ErrorCode::internal, "planted")));
  progress.advance(nullptr);
  EXPECT_TRUE(progress.reached(1));
  for (const std::uint64_t position : {2U, 3U}) {
    EXPECT_THROW(static_cast<void>(progress.reached(position)), Error);
    EXPECT_THROW(progress.wait_until(position), Error);
  }
}

TEST(HostBackend, AFailureReachesTheStreamsThatWaitForIt) {
  const auto backend = make_plain();
  const auto source = backend->make_stream("source");
  const auto user = backend->make_stream("user");
  const auto event = backend->make_event();
  bool used = false;
  source->submit([] { throw Error(ErrorCode::corrupt_data, "bad bytes"); });
  source->record(*event);
  user->wait(*event);
  user->submit([&used] { used = true; });
  try {
    user->synchronize();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
  }
  EXPECT_FALSE(used);
  EXPECT_THROW(source->synchronize(), Error);
}

TEST(HostBackend, AStreamWithAnUnreportedFailureIsDestroyedAndLogsIt) {
  const auto backend = make_plain();
  const auto event = backend->make_event();
  testing::internal::CaptureStderr();
  {
    const auto stream = backend->make_stream("failing");
    stream->submit([] { throw Error(ErrorCode::device_error, "nobody asked"); });
    stream->record(*event);
    backend->make_stream("odd")->submit([] { throw 7; });
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("failing was destroyed with an unreported failure: nobody asked"), log.npos);
  EXPECT_NE(log.find("odd was destroyed with an unreported failure\n"), log.npos) << log;
  EXPECT_THROW((void)event->done(), Error);  // outlives the stream
}

TEST(HostBackend, AnEventIsNotDoneWhileWorkBeforeItRuns) {
  const auto backend = make_plain();
  const auto stream = backend->make_stream("held");
  const auto event = backend->make_event();
  Gate gate;
  stream->submit([&gate] { gate.pass(); });
  stream->record(*event);
  EXPECT_FALSE(event->done());
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_FALSE(event->done());
  gate.open = true;
  stream->synchronize();
  EXPECT_TRUE(event->done());
}

TEST(HostBackend, StreamsRunConcurrently) {
  const auto backend = make_plain();
  const auto held = backend->make_stream("held");
  const auto opener = backend->make_stream("opener");
  Gate gate;
  held->submit([&gate] { gate.pass(); });
  opener->submit([&gate] { gate.open = true; });  // would never run behind the first
  held->synchronize();
  opener->synchronize();
}

TEST(HostBackend, SubmittingBeyondTheDepthWaitsForASlot) {
  const auto backend =
      make_host_backend({.device_capacity = 1_MiB, .pinned_capacity = 1_MiB, .stream_depth = 4});
  const auto stream = backend->make_stream("shallow");
  Gate gate;
  std::atomic<int> submitted{0};
  stream->submit([&gate] { gate.pass(); });
  std::thread control([&] {
    for (int i = 0; i < 4; ++i) {
      stream->submit([] {});
      ++submitted;
    }
  });
  while (submitted < 3) std::this_thread::yield();
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(submitted, 3);  // the held task and three more fill the ring
  gate.open = true;
  control.join();
  EXPECT_EQ(submitted, 4);
  stream->synchronize();
}

TEST(HostBackend, NotifiesTheWakeSignalWhenARecordedEventIsDone) {
  WakeSignal wake;
  const auto backend =
      make_host_backend({.device_capacity = 1_MiB, .pinned_capacity = 1_MiB, .wake = &wake});
  const auto stream = backend->make_stream("waking");
  const auto event = backend->make_event();
  for (int round = 0; round < 200; ++round) {
    stream->submit([] {});
    stream->record(*event);
    // The signal comes after the event is done, so a sleep always ends with the event visible.
    const auto start = Clock::now();
    while (!event->done()) wake.wait_for(milliseconds(10'000));
    ASSERT_LT(Clock::now() - start, milliseconds(9'000)) << "the notification was lost";
  }
}

TEST(HostBackend, NotifiesTheWakeSignalWhenAStreamHasFailed) {
  WakeSignal wake;
  const auto backend =
      make_host_backend({.device_capacity = 1_MiB, .pinned_capacity = 1_MiB, .wake = &wake});
  const auto stream = backend->make_stream("failing");
  const auto event = backend->make_event();
  stream->submit([] { throw Error(ErrorCode::device_error, "broken"); });
  stream->record(*event);
  const auto start = Clock::now();
  wake.wait_for(milliseconds(10'000));
  EXPECT_LT(Clock::now() - start, milliseconds(9'000));
  EXPECT_THROW(stream->synchronize(), Error);
}

TEST(HostBackend, WorkersCarryTheNameOfTheirStream) {
  const auto backend = make_plain();
  const auto stream = backend->make_stream("a-name-longer-than-fifteen");
  std::array<char, 16> name{};
  stream->submit([&name] { ::pthread_getname_np(::pthread_self(), name.data(), name.size()); });
  stream->synchronize();
  EXPECT_STREQ(name.data(), "a-name-longer-t");
}

TEST(HostBackend, IdleWorkersUseNoProcessorTime) {
  const auto backend = make_plain();
  const auto idle = backend->make_stream("idle");
  const auto held = backend->make_stream("held");
  const auto waiter = backend->make_stream("waiter");
  const auto event = backend->make_event();
  Gate gate;
  held->submit([&gate] {
    while (!gate.open.load()) std::this_thread::sleep_for(milliseconds(20));
  });
  held->record(*event);
  waiter->wait(*event);
  const auto processor_time = [] {
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  };
  std::this_thread::sleep_for(milliseconds(20));
  const double before = processor_time();
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_LT(processor_time() - before, 0.03);  // a spinning worker would use 0.3
  gate.open = true;
  waiter->synchronize();
}

TEST(HostBackend, RefusesOptionsThatCannotWork) {
  for (const double rate : {0.0, -1.0, 1e-9, 1e9}) {
    EXPECT_THROW((void)make_host_backend({.device_capacity = 1_MiB,
                                          .pinned_capacity = 1_MiB,
                                          .link_gigabytes_per_second = rate}),
                 Error)
        << rate;
  }
  EXPECT_THROW((void)make_host_backend(
                   {.device_capacity = 1_MiB, .pinned_capacity = 1_MiB, .stream_depth = 0}),
               Error);
}

TEST(HostBackend, NamesTheSystemWhenItRefusesWhatTheLimitAllows) {
  const auto backend = make_host_backend(
      {.device_capacity = Bytes{1ULL << 60}, .pinned_capacity = Bytes{1ULL << 60}});
  try {
    (void)backend->allocate(MemoryKind::pinned, Bytes{1ULL << 50});
    ADD_FAILURE() << "the allocation succeeded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    EXPECT_NE(std::string(error.what()).find("the system refused"), std::string::npos);
  }
  EXPECT_EQ(backend->usage(MemoryKind::pinned).current, Bytes{});
}

TEST(HostBackend, GivesFreedDeviceMemoryBackToTheSystem) {
  const auto backend = make_plain();
  // Above the C library's largest threshold: it gives 48 MiB a mapping of their own.
  const std::size_t mapped = ::mallinfo2().hblkhd;
  { const DeviceMemory device(*backend, 48_MiB); }
  EXPECT_EQ(::mallinfo2().hblkhd, mapped);
}

TEST(HostBackendDeathTest, MemoryThatOutlivesItsBackendIsABrokenInvariant) {
  EXPECT_DEATH(
      {
        auto backend = make_plain();
        [[maybe_unused]] std::byte* const leaked = backend->allocate(MemoryKind::device, 1_KiB);
        backend.reset();
      },
      "broken invariant");
}

TEST(HostBackendDeathTest, CopyingBetweenDifferentSizesIsABrokenInvariant) {
  EXPECT_DEATH(
      {
        const auto backend = make_plain();
        const auto stream = backend->make_stream("bad");
        const DeviceMemory device(*backend, 1_KiB);
        const PinnedMemory host(*backend, 2_KiB);
        stream->upload(device.device(), host.host());
      },
      "broken invariant");
}

}  // namespace
}  // namespace spillway::offload::host_backend_test
