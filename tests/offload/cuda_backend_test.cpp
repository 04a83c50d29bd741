// The CUDA backend on the fake runtime: the contract, what it calls, and how it refuses. It runs in
// every build; offload_gpu_test runs the same on a GPU.
#include "offload/cuda/cuda_backend.hpp"

#include <gtest/gtest.h>

#include "offload/cuda/detail/pinned_memory.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/memory_budget.hpp"
#include "tests/offload/cuda_step_rules.hpp"
#include "tests/offload/device_backend_fixture.hpp"
#include "tests/offload/fake_cuda.hpp"
#include "tests/support/refused_threads.hpp"

namespace spillway::offload::cuda_backend_test {
namespace {

using cuda::FakeCuda;
using cuda::FakeMachine;

INSTANTIATE_TEST_SUITE_P(FakeCuda, DeviceBackendContract,
                         ::testing::Values(BackendUnderTest{
                             .name = "fake_cuda",
                             .make =
                                 [](const BackendLimits& limits) {
                                   return cuda::make_backend(
                                       std::make_unique<FakeCuda>(),
                                       {.device_capacity = limits.device_capacity,
                                        .pinned_capacity = limits.pinned_capacity});
                                 }}),
                         [](const auto& instance) { return instance.param.name; });

struct Fixture {
  explicit Fixture(const FakeMachine& machine = {}, Bytes piece = 64_GiB) {
    auto api = std::make_unique<FakeCuda>(machine);
    fake = api.get();
    backend = cuda::make_backend(
        std::move(api),
        {.device_capacity = 64_MiB, .pinned_capacity = 64_MiB, .pinned_piece = piece});
  }
  FakeCuda* fake;
  std::unique_ptr<DeviceBackend> backend;
};

/// The message of the error that `action` throws.
template <class Action>
std::string refusal(ErrorCode code, int native, Action action) {
  try {
    action();
    ADD_FAILURE() << "nothing was thrown";
    return {};
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_EQ(error.native(), native) << error.what();
    return error.what();
  }
}

TEST(CudaBackend, AStepOnlyEnqueuesAndQueries) {
  cuda::expect_a_step_only_enqueues_and_queries(std::make_unique<FakeCuda>());
}

TEST(CudaBackend, SaysThatItsEventsDoNotWake) {
  EXPECT_FALSE(Fixture().backend->capabilities().wakes);
}

TEST(CudaBackend, AFullDeviceIsNamedAndCostsNothing) {
  Fixture it;
  it.fake->machine().allocate_status = cuda::kOutOfMemory;
  const std::string message = refusal(ErrorCode::out_of_memory, cuda::kOutOfMemory, [&] {
    (void)it.backend->allocate(MemoryKind::device, 1_MiB);
  });
  for (const char* const part : {"1048576", "cudaError2", "nvidia-smi", "--device-memory"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
  EXPECT_EQ(it.backend->usage(MemoryKind::device).current, Bytes{});
}

TEST(CudaBackend, ABrokenDeviceIsNotTakenForAFullOne) {
  Fixture it;
  it.fake->machine().allocate_status = 700;
  const std::string message = refusal(
      ErrorCode::device_error, 700, [&] { (void)it.backend->allocate(MemoryKind::device, 1_MiB); });
  EXPECT_NE(message.find("allocating device memory"), std::string::npos) << message;
  EXPECT_EQ(it.backend->usage(MemoryKind::device).current, Bytes{});
}

TEST(CudaBackend, MemoryThatCannotBeRegisteredIsGivenBackAndTheLimitsAreNamed) {
  Fixture it;
  it.fake->machine().register_status = cuda::kOutOfMemory;
  const std::string message = refusal(ErrorCode::out_of_memory, cuda::kOutOfMemory, [&] {
    (void)it.backend->allocate(MemoryKind::pinned, 1_MiB);
  });
  for (const char* const part :
       {"1048576", "cudaHostRegister", "locked memory", "ulimit -l", "--host-memory"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
  EXPECT_EQ(it.backend->usage(MemoryKind::pinned).current, Bytes{});
}

TEST(CudaBackend, MoreMemoryThanThereIsIsRefusedBeforeItIsTouched) {
  auto api = std::make_unique<FakeCuda>();
  const auto backend = cuda::make_backend(
      std::move(api), {.device_capacity = 1_MiB, .pinned_capacity = Bytes{1ULL << 60}});
  const std::string message = refusal(ErrorCode::out_of_memory, ENOMEM, [&] {
    (void)backend->allocate(MemoryKind::pinned, Bytes{1ULL << 50});
  });
  EXPECT_NE(message.find("available"), std::string::npos) << message;
  EXPECT_EQ(backend->usage(MemoryKind::pinned).current, Bytes{});
}

/// Registers three pages at most in one call.
constexpr FakeMachine kNarrow{.most_registered = 3 * kPageBytes};

TEST(CudaBackend, LargeMemoryIsRegisteredInPieces) {
  EXPECT_THROW(PinnedMemory(*Fixture(kNarrow).backend, Bytes{8 * kPageBytes}), Error);
  Fixture it(kNarrow, Bytes{3 * kPageBytes});
  for (std::size_t pages = 1; pages < 16; ++pages) {
    const PinnedMemory memory(*it.backend, Bytes{pages * kPageBytes - 5});
    EXPECT_EQ(memory.size(), Bytes{pages * kPageBytes - 5});
  }
}

TEST(CudaBackend, CopiesAreSplitWherePiecesMeet) {
  Fixture it(kNarrow, Bytes{3 * kPageBytes});
  const Bytes size{8 * kPageBytes};
  const PinnedMemory sent(*it.backend, size);
  const PinnedMemory received(*it.backend, size);
  const DeviceMemory device(*it.backend, size);
  std::uint32_t next = 0;
  for (std::byte& byte : sent.host()) byte = static_cast<std::byte>(++next * 2654435761U >> 24);
  const auto stream = it.backend->make_stream("both");
  stream->upload(device.device(), sent.host());
  stream->download(received.host(), device.device());
  stream->synchronize();
  EXPECT_TRUE(std::ranges::equal(sent.host(), received.host()));
}

TEST(CudaBackend, APieceThatCannotBeRegisteredTakesTheOthersWithIt) {
  FakeMachine machine = kNarrow;
  machine.register_room = 7 * kPageBytes;
  Fixture it(machine, Bytes{3 * kPageBytes});
  const std::string message = refusal(ErrorCode::out_of_memory, cuda::kOutOfMemory, [&] {
    (void)it.backend->allocate(MemoryKind::pinned, Bytes{8 * kPageBytes});
  });
  EXPECT_NE(message.find("cudaHostRegister"), std::string::npos) << message;
  EXPECT_EQ(it.backend->usage(MemoryKind::pinned).current, Bytes{});
}  // the fake asks at its end whether anything is registered

TEST(CudaBackend, MemoryThatSomebodyVouchesForIsTakenThoughTheSystemDoesNotSeeIt) {
  // The same fails as mmap's refusal where it is not even looked at whether it is available.
  const auto backend =
      cuda::make_backend(std::make_unique<FakeCuda>(), {.device_capacity = 1_MiB,
                                                        .pinned_capacity = Bytes{1ULL << 62},
                                                        .pinned_bound = PinnedBound::capacity});
  const std::string message = refusal(ErrorCode::out_of_memory, ENOMEM, [&] {
    (void)backend->allocate(MemoryKind::pinned, Bytes{1ULL << 60});
  });
  EXPECT_NE(message.find("mmap"), std::string::npos) << message;
  EXPECT_EQ(message.find("less memory than that"), std::string::npos) << message;
}

TEST(CudaBackend, SaysWhereWindowsPinsLessThanIsWanted) {
  MemoryBudget memory = read_memory_budget();
  memory.wsl = false;
  EXPECT_EQ(cuda::pinned_warning(memory, 64_GiB), "");
  memory.wsl = true;
  EXPECT_EQ(cuda::pinned_warning(memory, 1_GiB), "");
  const std::string warning = cuda::pinned_warning(memory, 64_GiB);
  for (const char* const part : {"WSL2", "near 1.00 GiB", "64.0 GiB", "--host-memory"}) {
    EXPECT_NE(warning.find(part), std::string::npos) << part << " is not in: " << warning;
  }
  EXPECT_EQ(warning.find('\n'), std::string::npos);
}

TEST(CudaBackend, ALargePinnedBufferReadsZeroFromEndToEnd) {
  const auto large = cuda::make_backend(std::make_unique<FakeCuda>(),
                                        {.device_capacity = 1_MiB, .pinned_capacity = 256_MiB});
  const PinnedMemory memory(*large, Bytes{(200U << 20) + 5});
  EXPECT_TRUE(
      std::ranges::all_of(memory.host(), [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST(CudaBackend, ALargePinnedBufferNeedsNoMoreThreads) {
  test_support::expect_without_threads([] {
    const auto large = cuda::make_backend(std::make_unique<FakeCuda>(),
                                          {.device_capacity = 1_MiB, .pinned_capacity = 128_MiB});
    const PinnedMemory memory(*large, 128_MiB);
    return memory.host().back() == std::byte{0};
  });
}

TEST(CudaBackend, WorkThatFailedOnTheGpuIsToldByTheEventAfterIt) {
  Fixture it;
  const auto stream = it.backend->make_stream("compute");
  const auto event = it.backend->make_event();
  stream->record(*event);
  it.fake->machine().query_status = 700;  // cudaErrorIllegalAddress
  const std::string message = refusal(ErrorCode::device_error, 700, [&] { (void)event->done(); });
  EXPECT_NE(message.find("cudaError700"), std::string::npos) << message;
  it.fake->machine().query_status = cuda::kSuccess;
}

/// What is logged where memory and streams end, each with this status.
std::string log_of_ends(cuda::Status status) {
  ::testing::internal::CaptureStderr();
  {
    Fixture it;
    const DeviceMemory device(*it.backend, 1_KiB);
    const PinnedMemory pinned(*it.backend, 1_KiB);
    const auto stream = it.backend->make_stream("compute");
    const auto event = it.backend->make_event();
    set_log_level(LogLevel::error);
    it.fake->machine().end_status = status;
  }
  set_log_level(LogLevel::warning);
  return ::testing::internal::GetCapturedStderr();
}

TEST(CudaBackend, ABrokenDeviceIsLoggedOnceByAllThatEnds) {
  const std::string log = log_of_ends(700);
  EXPECT_NE(log.find("destroying an event failed: cudaError700"), std::string::npos) << log;
  EXPECT_EQ(std::ranges::count(log, '\n'), 1) << log;
}

TEST(CudaBackend, ARuntimeThatEndsWithTheProcessIsNotLogged) {
  EXPECT_EQ(log_of_ends(4), "");  // cudaErrorCudartUnloading
}

TEST(CudaBackend, AGraphThatSomebodyCapturesIsNamedWithARemedy) {
  Fixture it;
  for (const int status : {900, 906}) {
    it.fake->machine().allocate_status = status;
    const std::string message = refusal(ErrorCode::device_error, status, [&] {
      (void)it.backend->allocate(MemoryKind::device, 1_MiB);
    });
    EXPECT_NE(message.find("capture_error_mode"), std::string::npos) << message;
    EXPECT_EQ(message.find("compute-sanitizer"), std::string::npos) << message;
  }
}

TEST(CudaBackend, CopiesOfMemoryThatIsNotPinnedAreRefusedByTheFake) {
  Fixture it;  // so that no test of the backend passes with a copy that would wait
  const auto stream = it.backend->make_stream("h2d");
  const DeviceMemory device(*it.backend, 1_KiB);
  std::array<std::byte, 1024> pageable{};
  const std::string message = refusal(ErrorCode::device_error, FakeCuda::kInvalidValue,
                                      [&] { stream->upload(device.device(), pageable); });
  EXPECT_NE(message.find("stream h2d: upload"), std::string::npos) << message;
}

TEST(CudaUnavailable, NamesWhatIsMissing) {
  struct Case {
    FakeMachine machine;
    int device;
    std::string_view part;
  };
  const std::array<Case, 6> cases{{
      {.machine = {.driver_version = 0, .count_status = cuda::kInsufficientDriver},
       .device = 0,
       .part = "no NVIDIA driver"},
      {.machine = {.driver_version = 12040, .count_status = cuda::kInsufficientDriver},
       .device = 0,
       .part = "supports CUDA 12.4 and this build needs 13.0"},
      {.machine = {.count_status = cuda::kNoDevice}, .device = 0, .part = "shows no GPU"},
      {.machine = {.count_status = 999}, .device = 0, .part = "cudaError999"},
      {.machine = {}, .device = 1, .part = "there is no GPU 1"},
      {.machine = {.compute_major = 7}, .device = 0, .part = "compute capability 7.0"},
  }};
  for (const Case& it : cases) {
    FakeCuda api(it.machine);
    const std::string reason = cuda::unavailable_reason(&api, it.device);
    EXPECT_NE(reason.find(it.part), std::string::npos) << it.part << " is not in: " << reason;
    EXPECT_THROW((void)cuda::query_device(api, it.device), Error);
  }
}

TEST(CudaUnavailable, IsEmptyWhereTheGpuIsGood) {
  FakeCuda api;
  EXPECT_EQ(cuda::unavailable_reason(&api, 0), "");
  EXPECT_EQ(cuda::query_device(api, 0).free_memory, 79_GiB);
}

TEST(CudaUnavailable, ABuildWithoutCudaSaysSo) {
  EXPECT_NE(cuda::unavailable_reason(nullptr, 0).find("this build has no CUDA"), std::string::npos);
  EXPECT_THROW(
      (void)cuda::make_backend(nullptr, {.device_capacity = 1_MiB, .pinned_capacity = 1_MiB}),
      Error);
}

}  // namespace
}  // namespace spillway::offload::cuda_backend_test
