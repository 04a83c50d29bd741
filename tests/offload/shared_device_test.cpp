// What the CUDA backend has in common with other code on the same GPU, on the fake runtime, whose
// streams run nothing before somebody asks.
#include <gtest/gtest.h>

#include <algorithm>

#include "offload/cuda/detail/cuda_backend.hpp"
#include "offload/memory.hpp"
#include "runtime/base/error.hpp"
#include "tests/offload/fake_cuda.hpp"

namespace spillway::offload::shared_device_test {
namespace {

using cuda::FakeCuda;
using cuda::FakeMachine;

struct Fixture {
  explicit Fixture(const FakeMachine& machine = {}, int number = 0) {
    auto api = std::make_unique<FakeCuda>(machine);
    fake = api.get();
    backend = cuda::make_backend(
        std::move(api), {.device_capacity = 1_MiB, .pinned_capacity = 1_MiB, .device = number});
    device = DeviceMemory(*backend, 1_KiB);
    source = PinnedMemory(*backend, 1_KiB);
    target = PinnedMemory(*backend, 1_KiB);
    std::ranges::fill(source.host(), std::byte{7});
    own = backend->make_stream("own");
    event = backend->make_event();
    EXPECT_EQ(fake->create_stream(external, Urgency::usual), cuda::kSuccess);
  }
  ~Fixture() {
    own.reset();
    EXPECT_EQ(fake->destroy_stream(external), cuda::kSuccess);
  }

  /// Somebody else's stream writes the device's memory.
  void write_elsewhere() {
    EXPECT_EQ(fake->copy(device.device().address(), source.host().data(), 1024,
                         cuda::CopyDirection::to_device, external),
              cuda::kSuccess);
  }
  /// Returns whether a copy on our stream, behind `event`, finds what was written.
  bool finds_it() {
    own->wait(*event);
    own->download(target.host(), device.device());
    own->synchronize();
    return std::ranges::all_of(target.host(), [](std::byte b) { return b == std::byte{7}; });
  }

  FakeCuda* fake;
  std::unique_ptr<DeviceBackend> backend;
  DeviceMemory device;
  PinnedMemory source, target;
  std::unique_ptr<Stream> own;
  std::unique_ptr<Event> event;
  void* external = nullptr;
};

TEST(SharedDevice, OrdersOurStreamBehindSomebodyElses) {
  Fixture it;
  it.write_elsewhere();
  it.backend->shared()->record_behind({ExternalWork::Kind::stream, it.external}, *it.event);
  EXPECT_TRUE(it.finds_it());
}

TEST(SharedDevice, OrdersOurStreamBehindSomebodyElsesEvent) {
  Fixture it;
  it.write_elsewhere();
  void* recorded = nullptr;
  ASSERT_EQ(it.fake->create_event(recorded), cuda::kSuccess);
  ASSERT_EQ(it.fake->record(recorded, it.external), cuda::kSuccess);
  it.backend->shared()->record_behind({ExternalWork::Kind::event, recorded}, *it.event);
  EXPECT_TRUE(it.finds_it());
  EXPECT_THROW(it.backend->shared()->record_behind({ExternalWork::Kind::event, nullptr}, *it.event),
               Error);
  ASSERT_EQ(it.fake->destroy_event(recorded), cuda::kSuccess);
}

TEST(SharedDevice, WithoutAWaitOurStreamComesFirst) {
  Fixture it;
  it.write_elsewhere();
  EXPECT_FALSE(it.finds_it());  // so that the tests above can fail
}

TEST(SharedDevice, RefusesAStreamThatIsCaptured) {
  Fixture it;
  it.fake->machine().captures = true;
  try {
    it.backend->shared()->record_behind({ExternalWork::Kind::stream, it.external}, *it.event);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_supported);
    EXPECT_NE(std::string(error.what()).find("reduce-overhead"), std::string::npos);
  }
}

// CUDA gives a context to each device that is made current, device 0 included.
TEST(SharedDevice, LeavesADeviceAloneThatNobodyHasChosen) {
  Fixture it({.devices = 2}, 1);
  EXPECT_EQ(it.fake->started(), 1);
  int current = -1;
  void* context = nullptr;
  ASSERT_EQ(it.fake->set_context(nullptr), cuda::kSuccess);  // as in a thread that is new
  it.backend->shared()->record_behind({ExternalWork::Kind::stream, it.external}, *it.event);
  EXPECT_EQ(it.fake->started(), 1);
  ASSERT_EQ(it.fake->current_context(context), cuda::kSuccess);
  EXPECT_EQ(context, nullptr);
  ASSERT_EQ(it.fake->set_device(0), cuda::kSuccess);
  it.backend->shared()->record_behind({ExternalWork::Kind::stream, it.external}, *it.event);
  ASSERT_EQ(it.fake->current_device(current), cuda::kSuccess);
  EXPECT_EQ(current, 0);
}

std::string refusal(SharedDevice& shared, const std::byte* address, std::size_t size) {
  try {
    shared.check_memory({address, size});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

TEST(SharedDevice, KnowsMemoryOfThisGpu) {
  Fixture it;
  SharedDevice& shared = *it.backend->shared();
  const std::byte* device = it.device.device().address();
  EXPECT_EQ(refusal(shared, device, 1024), "no error");
  EXPECT_NE(refusal(shared, device, 1 << 16).find("are not memory of GPU 0"), std::string::npos);
  EXPECT_NE(refusal(shared, it.source.host().data(), 8).find("of the host or of nobody"),
            std::string::npos);
  it.fake->machine().memory_device = 1;
  EXPECT_NE(refusal(shared, device, 1024).find("are memory of GPU 1, and GPU 0 is used here"),
            std::string::npos);
}

}  // namespace
}  // namespace spillway::offload::shared_device_test
