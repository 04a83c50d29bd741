// Host memory that the driver would not pin, on the fake runtime, which refuses to copy it: what is
// copied goes through the pinned buffer, in the order of its stream.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "offload/cuda/detail/cuda_backend.hpp"
#include "offload/memory.hpp"
#include "runtime/base/error.hpp"
#include "tests/offload/fake_cuda.hpp"

namespace spillway::offload::pageable_memory_test {
namespace {

using cuda::FakeCuda;

constexpr Bytes kBuffer{8 * kPageBytes};
constexpr Bytes kSize{10 * kPageBytes + 96};  // several slots, and a part of one

/// Pins the buffer and one page.
std::unique_ptr<DeviceBackend> backend_with_room(Bytes room = kBuffer + Bytes{kPageBytes}) {
  return cuda::make_backend(
      std::make_unique<FakeCuda>(cuda::FakeMachine{.register_room = room.value()}),
      {.device_capacity = 64_MiB, .pinned_capacity = 64_MiB, .bounce_buffer = kBuffer});
}

void fill(std::span<std::byte> bytes, std::uint32_t seed) {
  for (std::byte& byte : bytes) byte = static_cast<std::byte>((seed = seed * 1664525 + 7) >> 24);
}

TEST(PageableMemory, IsCopiedThroughThePinnedBuffer) {
  const auto backend = backend_with_room();
  const PinnedMemory pinned(*backend, Bytes{kPageBytes});
  const PinnedMemory sent(*backend, kSize);
  const PinnedMemory received(*backend, kSize);
  const DeviceMemory device(*backend, kSize);
  const auto stream = backend->make_stream("both");
  fill(sent.host(), 1);
  stream->upload(device.device(), sent.host());
  stream->download(received.host(), device.device());
  stream->upload(device.device().subspan(0, kPageBytes), pinned.host());
  stream->synchronize();
  EXPECT_TRUE(std::ranges::equal(sent.host(), received.host()));
  // From the middle of one to the middle of the other.
  stream->download(received.host().subspan(100, 5000), device.device().subspan(kPageBytes, 5000));
  stream->synchronize();
  EXPECT_TRUE(std::ranges::equal(received.host().subspan(100, 5000),
                                 sent.host().subspan(kPageBytes, 5000)));
}

TEST(PageableMemory, IsReadAndWrittenInTheOrderOfStreams) {
  const auto backend = backend_with_room();
  const PinnedMemory host(*backend, kSize);
  const PinnedMemory found(*backend, kSize);
  const DeviceMemory first(*backend, kSize);
  const DeviceMemory second(*backend, kSize);
  const auto down = backend->make_stream("down");
  const auto up = backend->make_stream("up");
  const auto event = backend->make_event();
  std::vector<std::byte> expected(kSize.value());
  fill(expected, 2);
  std::ranges::copy(expected, host.host().begin());
  up->upload(first.device(), host.host());
  up->synchronize();
  std::ranges::fill(host.host(), std::byte{0});
  // The upload may begin when the memory has come down, and is put on its stream before that.
  down->download(host.host(), first.device());
  down->record(*event);
  up->wait(*event);
  up->upload(second.device(), host.host());
  up->download(found.host(), second.device());
  up->synchronize();
  EXPECT_TRUE(std::ranges::equal(found.host(), expected));
}

TEST(PageableMemory, IsCountedAsPinnedAndToldInOneLine) {
  const auto backend = backend_with_room();
  testing::internal::CaptureStderr();
  {
    const PinnedMemory one(*backend, kSize);
    const PinnedMemory other(*backend, kSize);
    EXPECT_EQ(backend->usage(MemoryKind::pinned).current, kSize * 2U);
  }
  EXPECT_EQ(backend->usage(MemoryKind::pinned).current, Bytes{});
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(log, '\n'), 1) << log;
  for (const char* const part : {"cudaHostRegister", "32.0 KiB", "ulimit -l"}) {
    EXPECT_NE(log.find(part), std::string::npos) << part << " is not in: " << log;
  }
}

TEST(PageableMemory, IsRefusedWhereTheBufferIsNotPinnedEither) {
  const auto backend = backend_with_room(Bytes{kPageBytes});
  EXPECT_THROW(PinnedMemory(*backend, kSize), Error);
  EXPECT_EQ(backend->usage(MemoryKind::pinned).current, Bytes{});
}

TEST(PageableMemory, TakesASmallerBufferWhereLittleIsPinned) {
  const auto backend = cuda::make_backend(
      std::make_unique<FakeCuda>(
          cuda::FakeMachine{.register_room = (kBuffer + kBuffer / 2U).value()}),
      {.device_capacity = 64_MiB, .pinned_capacity = 64_MiB, .bounce_buffer = kBuffer * 4U});
  const PinnedMemory sent(*backend, kSize * 2U);
  const PinnedMemory received(*backend, kSize * 2U);
  const DeviceMemory device(*backend, kSize * 2U);
  const auto stream = backend->make_stream("both");
  fill(sent.host(), 3);
  stream->upload(device.device(), sent.host());
  stream->download(received.host(), device.device());
  stream->synchronize();
  EXPECT_TRUE(std::ranges::equal(sent.host(), received.host()));
}

TEST(PageableMemory, HasASlotForEachOfEightStreams) {
  const auto backend = backend_with_room();
  const PinnedMemory host(*backend, kSize);
  const DeviceMemory device(*backend, kSize);
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 8; ++i) {
    streams.push_back(backend->make_stream("one of eight"));
    streams.back()->upload(device.device(), host.host());
  }
  const auto ninth = backend->make_stream("ninth");
  EXPECT_THROW(ninth->upload(device.device(), host.host()), Error);
  streams.pop_back();
  EXPECT_NO_THROW(ninth->upload(device.device(), host.host()));
}

}  // namespace
}  // namespace spillway::offload::pageable_memory_test
