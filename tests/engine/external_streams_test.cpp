// Streams of another framework, on the emulated CUDA: the default stream of GPU 1, which has a null
// handle as that of GPU 0 does, while GPU 0 is current; a stream that is captured into a graph; and
// a stream that has yet to make gradients, which one thread or several have handed over.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <latch>
#include <thread>
#include <vector>

#include "runtime/base/error.hpp"
#include "tests/engine/device_framework.hpp"
#include "tests/engine/embedded_fixture.hpp"
#include "tests/engine/stream_orders.hpp"
#include "tests/support/cuda_emulation/emulation.hpp"
#include "tests/support/cuda_emulation/include/cuda_runtime_api.h"

namespace spillway::engine::external_streams_test {
namespace {

constexpr int kGpu = 1;
constexpr offload::ExternalWork kWork{offload::ExternalWork::Kind::stream, nullptr};

void expect(cudaError_t status) { ASSERT_EQ(status, cudaSuccess) << cudaGetErrorName(status); }

/// Pinned memory and memory of GPU 1, and what comes from the one to the other.
class Copied {
 public:
  explicit Copied(std::span<const std::byte> bytes) : bytes_(bytes.begin(), bytes.end()) {
    expect(cudaHostRegister(bytes_.data(), bytes_.size(), cudaHostRegisterDefault));
    expect(cudaSetDevice(kGpu));
    expect(cudaMalloc(&device_, bytes_.size()));
    expect(cudaSetDevice(0));
  }
  Copied(const Copied&) = delete;
  Copied& operator=(const Copied&) = delete;
  ~Copied() {
    expect(cudaFree(device_));  // once everything has run
    expect(cudaHostUnregister(bytes_.data()));
  }

  /// Brings the bytes to the device, when the default stream comes to it.
  [[nodiscard]] DeviceGradient gradient() {
    expect(
        cudaMemcpyAsync(device_, bytes_.data(), bytes_.size(), cudaMemcpyHostToDevice, stream()));
    return {.values = {static_cast<const std::byte*>(device_), bytes_.size()}, .ready = kWork};
  }
  /// Brings memory of the device to the bytes, when the default stream comes to it.
  void read(std::span<const std::byte> memory) {
    expect(cudaMemcpyAsync(bytes_.data(), memory.data(), memory.size(), cudaMemcpyDeviceToHost,
                           stream()));
  }
  [[nodiscard]] const std::vector<std::byte>& bytes() const {
    expect(cudaStreamSynchronize(stream()));
    return bytes_;
  }

 private:
  static cudaStream_t stream() {
    return static_cast<cudaStream_t>(cuda_emulation::default_stream(kGpu));
  }

  std::vector<std::byte> bytes_;
  void* device_ = nullptr;
};

class SecondGpu : public EmbeddedTrainerTest {
 protected:
  SecondGpu() { cuda_emulation::set_devices(2); }
  ~SecondGpu() override {
    expect(cudaSetDevice(0));
    cuda_emulation::set_devices(1);
  }

  std::unique_ptr<EmbeddedTrainer> make_on_gpu() {
    EmbeddedOptions options = options_for();
    options.device = config::DeviceKind::cuda;
    options.device_index = kGpu;
    auto trainer = make(options);
    expect(cudaSetDevice(0));
    return trainer;
  }
};

TEST_F(SecondGpu, IsFollowedOnItsDefaultStreamWhileAnotherIsCurrent) {
  const auto host = make(options_for());
  const auto start = image(*host);
  backward(*host, 1);
  host->step({});
  const auto expected = image(*host);
  for_each_stream_order([&](std::uint64_t order) {
    const auto trainer = make_on_gpu();
    std::deque<Copied> gradients;
    std::deque<Copied> reads;
    for (std::uint32_t i = 0; i < trainer->size(); ++i) {
      gradients.emplace_back(bytes_of(model_.gradient(i, 1)));
      trainer->add_device_gradient(i, gradients.back().gradient());
    }
    for (std::uint32_t i = 0; i < trainer->size(); ++i) {
      reads.emplace_back(std::vector<std::byte>(trainer->values(i).size()));
      reads.back().read(trainer->values(i));
    }
    trainer->step({.readers = kWork});
    int current = -1;
    expect(cudaGetDevice(&current));
    EXPECT_EQ(current, 0);
    trainer->wait();
    std::vector<std::byte> before, after;
    for (std::uint32_t i = 0; i < trainer->size(); ++i) {
      before.insert(before.end(), reads[i].bytes().begin(), reads[i].bytes().end());
      reads[i].read(trainer->values(i));
      after.insert(after.end(), reads[i].bytes().begin(), reads[i].bytes().end());
    }
    EXPECT_TRUE(before == start) << "order " << order;
    EXPECT_TRUE(after == expected) << "order " << order;
  });
}

TEST_F(SecondGpu, RefusesAStreamThatIsCapturedIntoAGraphAndGoesOn) {
  const auto host = make(options_for());
  backward(*host, 1);
  host->step({});
  const auto trainer = make_on_gpu();
  void* const stream = cuda_emulation::default_stream(kGpu);
  const auto expect_refused = [](const auto& call) {
    try {
      call();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::not_supported);
      EXPECT_THAT(error.what(), testing::HasSubstr("is being captured into a CUDA graph"));
    }
  };
  Copied gradient(bytes_of(model_.gradient(4, 1)));
  cuda_emulation::capture_stream(stream, true);
  expect_refused([&] { trainer->add_device_gradient(4, gradient.gradient()); });
  backward(*trainer, 1);
  expect_refused([&] { trainer->step({.readers = kWork}); });
  cuda_emulation::capture_stream(stream, false);
  trainer->step({.readers = kWork});
  EXPECT_EQ(state(*trainer), state(*host));
}

// Threads of the trainer ask and wait meanwhile, which CUDA forbids those that have not relaxed it.
TEST_F(SecondGpu, GoesOnWhileAnotherStreamIsCapturedIntoAGraph) {
  const auto host = make(options_for());
  backward(*host, 1);
  host->step({});
  const auto trainer = make_on_gpu();
  void* const captured = cuda_emulation::default_stream(0);
  std::deque<Copied> gradients;
  for (std::uint32_t i = 0; i < trainer->size(); ++i) {
    gradients.emplace_back(bytes_of(model_.gradient(i, 1)));
  }
  cuda_emulation::capture_stream(captured, true);
  for (std::uint32_t i = 0; i < trainer->size(); ++i) {
    trainer->add_device_gradient(i, gradients[i].gradient());
  }
  trainer->step({.readers = kWork});
  trainer->wait();
  cuda_emulation::capture_stream(captured, false);
  EXPECT_EQ(state(*trainer), state(*host));
}

class HeldStream : public EmbeddedTrainerTest {};

TEST_F(HeldStream, GradientsAreReadOnceItHasComeToThem) {
  EmbeddedOptions options = options_for();
  options.device = config::DeviceKind::cuda;
  DeviceFramework framework(model_.sizes);
  const auto trainer = make(options);
  for (const auto kind :
       {offload::ExternalWork::Kind::stream, offload::ExternalWork::Kind::event}) {
    for (std::uint32_t i = 0; i < trainer->size(); ++i) {
      const auto gradient = framework.gradient(i, bytes_of(model_.gradient(i, 1)), kind);
      cuda_emulation::hold_stream(framework.work().handle);
      trainer->add_device_gradient(i, gradient);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // copies take microseconds
      EXPECT_TRUE(trainer->reads_gradient(i)) << i;
      cuda_emulation::let_go_of_stream(framework.work().handle);
      await_gradient(*trainer, i);
    }
    trainer->discard_gradients();
  }
}

/// Has as many parameters as threads, of one size.
class ExternalThreads : public EmbeddedTrainerTest {
 protected:
  static constexpr std::uint32_t kThreads = 8;
  static constexpr std::size_t kElements = 64;

  ExternalThreads() {
    model_.sizes.assign(kThreads, kElements);
    model_.groups.assign(kThreads, 0);
    model_.values.assign(kThreads, normal(kElements, 1));
  }

  static std::ptrdiff_t read_on_device(const EmbeddedTrainer& trainer) {
    std::ptrdiff_t read = 0;
    for (std::uint32_t i = 0; i < kThreads; ++i) read += trainer.reads_gradient(i) ? 1 : 0;
    return read;
  }
};

TEST_F(ExternalThreads, OnlyAsMuchOfTheirGradientsWaitsAsIsAsked) {
  EmbeddedOptions options = options_for();
  options.device = config::DeviceKind::cuda;
  options.gradient_memory = Bytes{kElements * sizeof(float)};
  DeviceFramework framework(model_.sizes);
  const auto trainer = make(options);
  for (int round = 1; round <= 60; ++round) {
    std::vector<DeviceGradient> gradients;
    for (std::uint32_t i = 0; i < kThreads; ++i) {
      gradients.push_back(framework.gradient(i, bytes_of(model_.gradient(i, round)),
                                             offload::ExternalWork::Kind::stream));
    }
    cuda_emulation::hold_stream(framework.work().handle);  // what was taken stays on the device
    std::latch start(kThreads);
    std::atomic<std::uint32_t> taken = 0;
    std::vector<std::jthread> threads;
    for (std::uint32_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        start.arrive_and_wait();
        trainer->add_device_gradient(i, gradients[i]);
        ++taken;
        taken.notify_one();
      });
    }
    taken.wait(0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // others that have room come too
    EXPECT_EQ(read_on_device(*trainer), 1) << "round " << round;
    cuda_emulation::let_go_of_stream(framework.work().handle);
    threads.clear();
    EXPECT_EQ(taken, kThreads);
    trainer->discard_gradients();
  }
}

}  // namespace
}  // namespace spillway::engine::external_streams_test
