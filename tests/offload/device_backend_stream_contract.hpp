// The part of the device backend contract about streams and events. Include
// device_backend_contract.hpp instead.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/offload/device_backend_fixture.hpp"
#include "tests/support/allocation_counter.hpp"

namespace spillway::offload {

TEST_P(DeviceBackendContract, CopiesEveryByteThereAndBack) {
  const auto backend = make();
  const auto stream = backend->make_stream("copy");
  for (const std::uint64_t size : {1U, 7U, 4095U, 4096U, 65'537U, 3U << 20}) {
    const PinnedMemory source(*backend, Bytes{size});
    const PinnedMemory target(*backend, Bytes{size});
    const DeviceMemory device(*backend, Bytes{size});
    fill(source.host(), size);
    fill(target.host(), size + 1);
    stream->upload(device.device(), source.host());
    stream->download(target.host(), device.device());
    stream->synchronize();
    EXPECT_TRUE(equal(source.host(), target.host())) << size;
  }
}

TEST_P(DeviceBackendContract, CopiesOfPartsLeaveTheRestAlone) {
  const auto backend = make();
  const auto stream = backend->make_stream("parts");
  const PinnedMemory host(*backend, 16_KiB);
  const DeviceMemory device(*backend, 16_KiB);
  fill(host.host(), 1);
  std::vector<std::byte> expected(host.host().begin(), host.host().end());
  stream->upload(device.device(), host.host());
  stream->synchronize();
  fill(host.host(), 2);
  stream->upload(device.device().subspan(1000, 3001), host.host().subspan(77, 3001));
  std::copy_n(host.host().begin() + 77, 3001, expected.begin() + 1000);
  stream->synchronize();
  fill(host.host(), 3);
  stream->download(host.host(), device.device());
  stream->synchronize();
  EXPECT_TRUE(equal(host.host(), expected));
}

TEST_P(DeviceBackendContract, AcceptsEmptyCopies) {
  const auto backend = make();
  const auto stream = backend->make_stream("empty");
  stream->upload({}, {});
  stream->download({}, {});
  EXPECT_NO_THROW(stream->synchronize());
}

TEST_P(DeviceBackendContract, RunsTasksOfAStreamInOrder) {
  const auto backend = make();
  const auto stream = backend->make_stream("tasks");
  constexpr std::uint32_t kTasks = 5000;  // more than any queue is deep
  std::vector<std::uint32_t> order;
  order.reserve(kTasks);
  for (std::uint32_t i = 0; i < kTasks; ++i) {
    stream->submit([&order, i] { order.push_back(i); });
  }
  stream->synchronize();
  ASSERT_EQ(order.size(), kTasks);
  for (std::uint32_t i = 0; i < kTasks; ++i) ASSERT_EQ(order[i], i);
}

TEST_P(DeviceBackendContract, AnEventNeverRecordedIsDoneAndHoldsNobodyUp) {
  const auto backend = make();
  const auto stream = backend->make_stream("idle");
  const auto event = backend->make_event();
  EXPECT_TRUE(event->done());
  stream->wait(*event);
  EXPECT_NO_THROW(stream->synchronize());
}

TEST_P(DeviceBackendContract, AnEventIsDoneOnceTheWorkBeforeItIsDone) {
  const auto backend = make();
  const auto stream = backend->make_stream("work");
  const auto event = backend->make_event();
  const PinnedMemory source(*backend, 16_MiB);
  const PinnedMemory target(*backend, 16_MiB);
  const DeviceMemory device(*backend, 16_MiB);
  fill(source.host(), 5);
  fill(target.host(), 6);
  stream->upload(device.device(), source.host());
  stream->download(target.host(), device.device());
  stream->record(*event);
  while (!event->done()) {
  }
  EXPECT_TRUE(equal(source.host(), target.host()));
  EXPECT_TRUE(event->done());
  stream->synchronize();
}

// Copies chase each other over two streams; each leg starts only once the event before it is done.
TEST_P(DeviceBackendContract, AStreamWaitsForAnEventOfAnother) {
  const auto backend = make(Bytes{64 << 20}, Bytes{128 << 20});
  const auto up = backend->make_stream("up");
  const auto down = backend->make_stream("down");
  const auto uploaded = backend->make_event();
  const auto downloaded = backend->make_event();
  constexpr std::size_t kSize = 2 << 20;
  const PinnedMemory source(*backend, Bytes{kSize});
  const PinnedMemory target(*backend, Bytes{kSize});
  const DeviceMemory device(*backend, Bytes{kSize});
  for (std::uint64_t round = 0; round < 20; ++round) {
    fill(source.host(), round);
    fill(target.host(), round + 1000);
    up->upload(device.device(), source.host());
    up->record(*uploaded);
    down->wait(*uploaded);
    down->download(target.host(), device.device());
    down->record(*downloaded);
    up->wait(*downloaded);
    // Overwrites the device behind the download's back, were it not for the wait.
    up->upload(device.device().subspan(0, kSize / 2), source.host().subspan(kSize / 2, kSize / 2));
    up->synchronize();
    ASSERT_TRUE(downloaded->done());
    ASSERT_TRUE(equal(source.host(), target.host())) << "round " << round;
  }
}

// A wait holds for the recording that was the latest when it was asked for, not for a later one.
TEST_P(DeviceBackendContract, RecordingAgainNeitherFreesNorHoldsAnEarlierWait) {
  const auto backend = make();
  const auto first = backend->make_stream("first");
  const auto second = backend->make_stream("second");
  const auto waiter = backend->make_stream("waiter");
  const auto event = backend->make_event();
  const PinnedMemory source(*backend, 2_MiB);
  const PinnedMemory target(*backend, 2_MiB);
  const DeviceMemory device(*backend, 2_MiB);
  for (std::uint64_t round = 0; round < 20; ++round) {
    fill(source.host(), round);
    fill(target.host(), round + 1000);
    first->upload(device.device(), source.host());
    first->record(*event);
    waiter->wait(*event);
    second->record(*event);  // done at once: must not stand for the upload
    waiter->download(target.host(), device.device());
    second->synchronize();
    ASSERT_TRUE(event->done());  // speaks of the latest recording
    waiter->synchronize();
    ASSERT_TRUE(equal(source.host(), target.host())) << "round " << round;
    // Recorded again behind work that waits for the waiter: a wait for it would never end.
    second->record(*event);
    second->synchronize();
    waiter->wait(*event);
    waiter->synchronize();
  }
}

TEST_P(DeviceBackendContract, AFailingTaskIsReportedWithItsOwnError) {
  const auto backend = make();
  const auto stream = backend->make_stream("failing");
  try {
    stream->submit([] { throw Error(ErrorCode::device_error, "the kernel broke", 77); });
    stream->synchronize();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::device_error);
    EXPECT_EQ(error.native(), 77);
    EXPECT_STREQ(error.what(), "the kernel broke");
  }
}

TEST_P(DeviceBackendContract, DestroyingAStreamCompletesItsWork) {
  const auto backend = make();
  const PinnedMemory source(*backend, 4_MiB);
  const PinnedMemory target(*backend, 4_MiB);
  const DeviceMemory device(*backend, 4_MiB);
  const auto event = backend->make_event();
  fill(source.host(), 1);
  {
    const auto stream = backend->make_stream("short-lived");
    stream->upload(device.device(), source.host());
    stream->download(target.host(), device.device());
    stream->record(*event);
  }
  while (!event->done()) {
  }
  EXPECT_TRUE(equal(source.host(), target.host()));
}

TEST_P(DeviceBackendContract, ASteadyStateAllocatesNothing) {
  const auto backend = make();
  const auto up = backend->make_stream("up");
  const auto down = backend->make_stream("down");
  const auto uploaded = backend->make_event();
  const auto downloaded = backend->make_event();
  const PinnedMemory host(*backend, 8_KiB);
  const DeviceMemory device(*backend, 8_KiB);
  fill(host.host(), 1);
  std::uint64_t tasks = 0;
  const auto round = [&] {
    up->wait(*downloaded);
    up->upload(device.device(), host.host());
    up->record(*uploaded);
    down->wait(*uploaded);
    down->download(host.host(), device.device());
    down->submit([&tasks] { ++tasks; });
    down->record(*downloaded);
    while (!downloaded->done()) {
    }
  };
  for (int i = 0; i < 10; ++i) round();
  const test_support::AllocationCounter counter;
  for (int i = 0; i < 1000; ++i) round();
  EXPECT_EQ(counter.allocations(), 0);
  EXPECT_EQ(tasks, 1010U);
}

// Random copies between random places on random streams, ordered by events wherever two touch the
// same buffer, must leave what the same copies leave one after the other.
TEST_P(DeviceBackendContract, AnyOrderedTangleOfCopiesEqualsTheSerialOne) {
  const char* const given = std::getenv("SPILLWAY_TEST_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  SCOPED_TRACE("SPILLWAY_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  constexpr std::size_t kBuffers = 4;
  constexpr std::size_t kSize = 40'000;
  const auto backend = make();

  struct Place {
    std::vector<std::byte> model;
    std::unique_ptr<Event> last_use;
  };
  std::vector<PinnedMemory> hosts;
  std::vector<DeviceMemory> devices;
  std::array<Place, 2 * kBuffers> places;  // hosts, then devices
  std::array<std::unique_ptr<Stream>, 3> streams;
  for (auto& stream : streams) stream = backend->make_stream("tangle");
  for (std::size_t i = 0; i < kBuffers; ++i) {
    fill(hosts.emplace_back(*backend, Bytes{kSize}).host(), i);
    streams[0]->upload(devices.emplace_back(*backend, Bytes{kSize}).device(), hosts[i].host());
    places[i].model.assign(hosts[i].host().begin(), hosts[i].host().end());
    places[kBuffers + i].model = places[i].model;
  }
  streams[0]->synchronize();
  for (Place& place : places) place.last_use = backend->make_event();

  for (int operation = 0; operation < 2000; ++operation) {
    const std::size_t host = random() % kBuffers;
    const std::size_t device = random() % kBuffers;
    const std::size_t first = random() % kSize;
    const std::size_t count = random() % (kSize - first) + 1;
    const bool upload = random() % 2 == 0;
    Stream& stream = *streams[random() % streams.size()];
    Place& host_place = places[host];
    Place& device_place = places[kBuffers + device];
    stream.wait(*host_place.last_use);
    stream.wait(*device_place.last_use);
    const auto host_part = hosts[host].host().subspan(first, count);
    const auto device_part = devices[device].device().subspan(first, count);
    const auto at = static_cast<std::ptrdiff_t>(first);
    if (upload) {
      stream.upload(device_part, host_part);
      std::copy_n(host_place.model.begin() + at, count, device_place.model.begin() + at);
    } else {
      stream.download(host_part, device_part);
      std::copy_n(device_place.model.begin() + at, count, host_place.model.begin() + at);
    }
    stream.record(*host_place.last_use);
    stream.record(*device_place.last_use);
  }
  for (auto& stream : streams) stream->synchronize();
  for (std::size_t i = 0; i < kBuffers; ++i) {
    EXPECT_TRUE(equal(hosts[i].host(), places[i].model)) << "host buffer " << i;
    streams[0]->download(hosts[i].host(), devices[i].device());
    streams[0]->synchronize();
    EXPECT_TRUE(equal(hosts[i].host(), places[kBuffers + i].model)) << "device buffer " << i;
  }
}

}  // namespace spillway::offload
