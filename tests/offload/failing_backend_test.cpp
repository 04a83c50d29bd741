// The failing adaptor is a backend like any other until its operation is due.
#include "offload/failing_backend.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "offload/host/host_backend.hpp"
#include "offload/memory.hpp"

namespace spillway::offload::failing_backend_test {
namespace {

std::unique_ptr<FailingBackend> make_backend() {
  return std::make_unique<FailingBackend>(
      make_host_backend({.device_capacity = 1_MiB, .pinned_capacity = 1_MiB}));
}

/// Data there and back, with every kind of operation; true if it arrived.
bool round_trip(DeviceBackend& backend) {
  const auto stream = backend.make_stream("round trip");
  const auto event = backend.make_event();
  const DeviceMemory device(backend, 8_KiB);
  const PinnedMemory source(backend, 8_KiB);
  const PinnedMemory target(backend, 8_KiB);
  std::ranges::fill(source.host(), std::byte{42});
  std::ranges::fill(target.host(), std::byte{0});
  stream->upload(device.device(), source.host());
  stream->submit([] {});
  stream->download(target.host(), device.device());
  stream->record(*event);
  stream->wait(*event);
  stream->synchronize();
  return event->done() && std::ranges::equal(source.host(), target.host());
}

class FailingBackendTest : public ::testing::TestWithParam<std::pair<FaultKind, ErrorCode>> {};

TEST_P(FailingBackendTest, FailsTheNthOperationOfItsKindUntilTheWholeSucceeds) {
  const auto [kind, code] = GetParam();
  const auto backend = make_backend();
  ASSERT_TRUE(round_trip(*backend));
  const std::uint64_t operations = backend->operations(kind);
  ASSERT_GT(operations, 0U);
  for (std::uint64_t nth = 1; nth <= operations; ++nth) {
    backend->fail(kind, nth);
    try {
      (void)round_trip(*backend);
      ADD_FAILURE() << "operation " << nth << " did not fail";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
    }
    EXPECT_EQ(backend->usage(MemoryKind::device).current, Bytes{});
    EXPECT_EQ(backend->usage(MemoryKind::pinned).current, Bytes{});
  }
  backend->fail(kind, operations + 1);
  EXPECT_TRUE(round_trip(*backend));
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, FailingBackendTest,
    ::testing::Values(std::pair(FaultKind::device_allocation, ErrorCode::out_of_memory),
                      std::pair(FaultKind::pinned_allocation, ErrorCode::out_of_memory),
                      std::pair(FaultKind::upload, ErrorCode::device_error),
                      std::pair(FaultKind::download, ErrorCode::device_error),
                      std::pair(FaultKind::task, ErrorCode::device_error)));

TEST(FailingBackend, ZeroDisarmsIt) {
  const auto backend = make_backend();
  backend->fail(FaultKind::upload, 1);
  backend->fail(FaultKind::upload, 0);
  EXPECT_TRUE(round_trip(*backend));
}

}  // namespace
}  // namespace spillway::offload::failing_backend_test
