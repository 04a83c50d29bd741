// What every DeviceBackend owes its users. Include it in one source of a test binary and
// instantiate `DeviceBackendContract` with a `BackendUnderTest`; link spillway_test_support.
//
// Device memory is never read on the host: data moves by upload and download only, and submitted
// tasks do nothing but note that, and in which order, they ran.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/offload/device_backend_fixture.hpp"
#include "tests/offload/device_backend_stream_contract.hpp"
#include "tests/support/forked_child.hpp"

namespace spillway::offload {

TEST_P(DeviceBackendContract, AlignsEverySizeToPages) {
  const auto backend = make();
  for (const MemoryKind kind : kKinds) {
    for (const std::uint64_t size :
         {1U, 2U, 511U, 4095U, 4096U, 4097U, 100'003U, 5U << 20, (6U << 20) + 1}) {
      std::byte* const address = backend->allocate(kind, Bytes{size});
      EXPECT_TRUE(page_aligned(address)) << size;
      EXPECT_EQ(backend->usage(kind).current, Bytes{size});  // never rounded
      backend->deallocate(kind, address, Bytes{size});
      EXPECT_EQ(backend->usage(kind).current, Bytes{});
    }
  }
}

TEST_P(DeviceBackendContract, StartsLargePinnedBuffersApartModuloHugePages) {
  constexpr std::uintptr_t kHuge = std::uintptr_t{2} << 20;
  constexpr std::uintptr_t kLeast = std::uintptr_t{64} << 10;  // room for four arrays of a tile
  constexpr Bytes kSize{4 << 20};
  const auto backend = make(Bytes{1}, Bytes{8 * kSize.value()});
  std::vector<std::byte*> buffers(8);
  for (std::byte*& buffer : buffers) buffer = backend->allocate(MemoryKind::pinned, kSize);
  for (std::size_t a = 0; a < buffers.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      const auto apart = (reinterpret_cast<std::uintptr_t>(buffers[a]) -
                          reinterpret_cast<std::uintptr_t>(buffers[b])) %
                         kHuge;
      EXPECT_GE(apart, kLeast) << a << " and " << b;
      EXPECT_LE(apart, kHuge - kLeast) << a << " and " << b;
    }
  }
  for (std::byte* const buffer : buffers) backend->deallocate(MemoryKind::pinned, buffer, kSize);
}

TEST_P(DeviceBackendContract, PinnedMemoryIsInAForkedChildOnlyWhereItIsShown) {
  const auto backend = make(Bytes{1}, 16_MiB);
  const PinnedMemory hidden(*backend, 6_MiB + 1_B);  // in huge pages, where there are some
  const PinnedMemory shown(*backend, 5'000_B);
  for (const PinnedMemory* const memory : {&hidden, &shown}) fill(memory->host(), 1);
  show_to_children(shown);
  EXPECT_EQ(test_support::ends_in_child(hidden.host()), 0);
  EXPECT_EQ(test_support::ends_in_child(shown.host()), 2);
}

TEST_P(DeviceBackendContract, MapsPagesOfAFileInTheirOrderAndChangesNothingThere) {
  const int file = ::memfd_create("pages", MFD_CLOEXEC);
  ASSERT_GE(file, 0);
  std::vector<std::byte> content(5 * kPageBytes);
  fill(content, 7);
  ASSERT_EQ(::pwrite(file, content.data(), content.size(), 0),
            static_cast<ssize_t>(content.size()));
  const auto backend = make(16_KiB, Bytes{3 * kPageBytes});
  const SharedPages pages{.file = file,
                          .parts = {{.first = 3 * kPageBytes, .bytes = kPageBytes},
                                    {.first = 0, .bytes = 2 * kPageBytes}}};
  {
    const PinnedMemory memory(*backend, pages);
    EXPECT_EQ(backend->usage(MemoryKind::pinned).current, Bytes{3 * kPageBytes});
    const std::span<std::byte> host = memory.host();
    EXPECT_TRUE(
        equal(host.first(kPageBytes), std::span(content).subspan(3 * kPageBytes, kPageBytes)));
    EXPECT_TRUE(equal(host.subspan(kPageBytes), std::span(content).first(2 * kPageBytes)));
    // What the device brings there, others see: here who reads the file.
    const DeviceMemory device(*backend, 16_KiB);
    const auto stream = backend->make_stream("copies");
    stream->upload(device.device().subspan(0, kPageBytes), host.subspan(kPageBytes, kPageBytes));
    stream->download(host.first(kPageBytes), device.device().subspan(0, kPageBytes));
    stream->synchronize();
  }
  EXPECT_EQ(backend->usage(MemoryKind::pinned).current, Bytes{});
  std::vector<std::byte> after(content.size());
  ASSERT_EQ(::pread(file, after.data(), after.size(), 0), static_cast<ssize_t>(after.size()));
  std::copy_n(content.begin(), kPageBytes, content.begin() + 3 * kPageBytes);
  EXPECT_TRUE(equal(after, content));
  for (const FilePages& wrong : {FilePages{.first = 4 * kPageBytes, .bytes = 2 * kPageBytes},
                                 FilePages{.first = 8, .bytes = kPageBytes}}) {
    EXPECT_THROW(PinnedMemory(*backend, SharedPages{.file = file, .parts = {wrong}}), Error);
  }
  EXPECT_EQ(backend->usage(MemoryKind::pinned).current, Bytes{});
  ::close(file);
}

TEST_P(DeviceBackendContract, EnforcesEachCapacityToTheByte) {
  const auto backend = make(Bytes{1'000'001}, Bytes{2'000'003});
  for (const MemoryKind kind : kKinds) {
    const Bytes capacity = backend->usage(kind).capacity;
    ASSERT_EQ(capacity, Bytes{kind == MemoryKind::device ? 1'000'001U : 2'000'003U});
    EXPECT_THROW((void)backend->allocate(kind, capacity + Bytes{1}), Error);
    std::byte* const most = backend->allocate(kind, capacity - Bytes{1});
    EXPECT_THROW((void)backend->allocate(kind, Bytes{2}), Error);
    std::byte* const last = backend->allocate(kind, Bytes{1});
    EXPECT_EQ(backend->usage(kind).current, capacity);
    EXPECT_THROW((void)backend->allocate(kind, Bytes{1}), Error);
    backend->deallocate(kind, most, capacity - Bytes{1});
    std::byte* const again = backend->allocate(kind, capacity - Bytes{1});
    backend->deallocate(kind, again, capacity - Bytes{1});
    backend->deallocate(kind, last, Bytes{1});
  }
}

TEST_P(DeviceBackendContract, RefusalNamesWhatWasAskedTheLimitTheUseAndTheRemedy) {
  const auto backend = make(Bytes{100'000}, Bytes{100'000});
  for (const MemoryKind kind : kKinds) {
    std::byte* const held = backend->allocate(kind, Bytes{30'001});
    try {
      (void)backend->allocate(kind, Bytes{77'777});
      ADD_FAILURE() << "the allocation succeeded";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
      const std::string message = error.what();
      for (const std::string_view part : {"77777", "30001", "100000"}) {
        EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
      }
      const std::string_view remedy =
          kind == MemoryKind::device ? "--device-memory" : "--host-memory";
      EXPECT_NE(message.find(remedy), std::string::npos) << message;
    }
    EXPECT_EQ(backend->usage(kind).current, Bytes{30'001});  // a refusal takes nothing
    EXPECT_EQ(backend->usage(kind).high_water, Bytes{30'001});
    backend->deallocate(kind, held, Bytes{30'001});
  }
}

TEST_P(DeviceBackendContract, RefusesASizeThatWouldOverflowTheAccount) {
  const auto backend = make();
  for (const MemoryKind kind : kKinds) {
    std::byte* const held = backend->allocate(kind, Bytes{4096});
    EXPECT_THROW((void)backend->allocate(kind, Bytes{~std::uint64_t{0} - 100}), Error);
    backend->deallocate(kind, held, Bytes{4096});
  }
}

TEST_P(DeviceBackendContract, HighWaterRemembersTheLargestUseOfEachKind) {
  const auto backend = make();
  {
    const DeviceMemory first(*backend, Bytes{10'000});
    const DeviceMemory second(*backend, Bytes{20'000});
    const PinnedMemory pinned(*backend, Bytes{5'000});
  }
  const DeviceMemory third(*backend, Bytes{25'000});
  EXPECT_EQ(backend->usage(MemoryKind::device).current, Bytes{25'000});
  EXPECT_EQ(backend->usage(MemoryKind::device).high_water, Bytes{30'000});
  EXPECT_EQ(backend->usage(MemoryKind::pinned).current, Bytes{});
  EXPECT_EQ(backend->usage(MemoryKind::pinned).high_water, Bytes{5'000});
}

TEST_P(DeviceBackendContract, MemoryMovesItsAllocationAndFreesItOnce) {
  const auto backend = make();
  PinnedMemory first(*backend, Bytes{4'000});
  fill(first.host(), 1);
  const std::byte* const address = first.host().data();
  PinnedMemory second(std::move(first));
  EXPECT_EQ(second.host().data(), address);
  EXPECT_EQ(second.size(), Bytes{4'000});
  EXPECT_TRUE(first.host().empty());  // NOLINT(bugprone-use-after-move): the moved-from state
  PinnedMemory third(*backend, Bytes{8'000});
  EXPECT_EQ(backend->usage(MemoryKind::pinned).current, Bytes{12'000});
  third = std::move(second);
  EXPECT_EQ(backend->usage(MemoryKind::pinned).current, Bytes{4'000});
  EXPECT_EQ(third.host().data(), address);
  third = PinnedMemory();
  EXPECT_EQ(backend->usage(MemoryKind::pinned).current, Bytes{});
}

}  // namespace spillway::offload
