// Calls that the header lets threads make at the same time, where threads often sleep before they
// lock something.
#include <gmock/gmock.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <random>
#include <thread>

#include "tests/capi/fixture.hpp"

namespace spillway::capi_test::threads_test {
namespace {

std::atomic<bool> sleeps = false;

void sleep_sometimes() {
  if (!sleeps) return;
  thread_local std::minstd_rand random(std::random_device{}());
  if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
}

}  // namespace

// The linker names pthread_mutex_lock the first, and its calls in this program the second.
int lock_at_once(pthread_mutex_t* mutex) asm("__real_pthread_mutex_lock");
int lock_later(pthread_mutex_t* mutex) asm("__wrap_pthread_mutex_lock");
int lock_later(pthread_mutex_t* mutex) {
  sleep_sometimes();
  return lock_at_once(mutex);
}

namespace {

using testing::HasSubstr;

constexpr std::uint32_t kResidents = 2;
constexpr std::uint32_t kUnits = 4;
constexpr std::uint32_t kParameters = kResidents + kUnits;
constexpr std::array<std::int64_t, 1> kShape{64};
using Values = std::array<float, kShape[0]>;

Values numbers(std::uint32_t parameter, int step) {
  std::minstd_rand random(1 + parameter + 100 * static_cast<unsigned>(step));
  Values values;
  for (float& value : values) value = static_cast<float>(random() % 100) / 50 - 1;
  return values;
}

/// Makes a trainer; `streamed`: one whose updates are deferred.
spillway_trainer* make(bool streamed) {
  spillway_trainer* made = nullptr;
  EXPECT_EQ(spillway_create(&made), SPILLWAY_OK);
  spillway_group group = SPILLWAY_GROUP_INIT;
  EXPECT_EQ(spillway_add_group(made, &group, nullptr), SPILLWAY_OK);
  std::array<Values, kParameters> start;
  for (std::uint32_t i = 0; i < kParameters; ++i) {
    start[i] = numbers(i, 0);
    const spillway_tensor tensor = tensor_of(std::span<float>(start[i]), kShape);
    EXPECT_EQ(spillway_add_parameter(made, std::to_string(i).c_str(), 0, &tensor, nullptr), 0);
    if (streamed && i >= kResidents) {
      EXPECT_EQ(spillway_set_unit(made, i, i - kResidents), SPILLWAY_OK);
    }
  }
  spillway_options options = SPILLWAY_OPTIONS_INIT;
  options.threads = 2;
  if (streamed) {
    options.defers_updates = 1;
    options.device_memory = 64 << 10;  // two units beside what stays
  }
  EXPECT_EQ(spillway_start(made, &options), SPILLWAY_OK) << spillway_last_message();
  return made;
}

std::span<const float> values_of(spillway_trainer* trainer, std::uint32_t parameter) {
  spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
  EXPECT_EQ(spillway_values(trainer, parameter, &tensor), SPILLWAY_OK) << spillway_last_message();
  return {static_cast<const float*>(tensor.data), kShape[0]};
}

/// Has a trainer that several threads use, and one of the same bits that one thread uses.
class CThreads : public testing::Test {
 protected:
  void SetUp() override {
    threads_ = make(/*streamed=*/true);
    alone_ = make(/*streamed=*/false);
    sleeps = true;
  }
  void TearDown() override {
    sleeps = false;
    EXPECT_EQ(spillway_destroy(threads_), SPILLWAY_OK);
    EXPECT_EQ(spillway_destroy(alone_), SPILLWAY_OK);
  }

  void expect_values(std::span<const float> found, std::uint32_t parameter) {
    EXPECT_TRUE(std::ranges::equal(found, values_of(alone_, parameter))) << parameter;
  }

  void visit(std::uint32_t unit, std::int32_t pass) {
    EXPECT_EQ(spillway_enter(threads_, unit, pass), SPILLWAY_OK) << spillway_last_message();
    spillway_tensor there = SPILLWAY_TENSOR_INIT;
    const std::uint32_t parameter = kResidents + unit;
    EXPECT_EQ(spillway_device_values(threads_, parameter, &there), SPILLWAY_OK);
    expect_values({static_cast<const float*>(there.data), kShape[0]}, parameter);
    EXPECT_EQ(spillway_leave(threads_, unit, SPILLWAY_READY_NOW, nullptr), SPILLWAY_OK);
    ++progress_;
  }

  void pass() {
    for (std::uint32_t unit = 0; unit < kUnits; ++unit) visit(unit, SPILLWAY_FORWARD);
    for (std::uint32_t unit = kUnits; unit-- > 0;) visit(unit, SPILLWAY_BACKWARD);
  }

  /// Hands over the gradient of every second parameter.
  void hand_over(std::uint32_t first, int step) {
    for (std::uint32_t i = first; i < kParameters; i += 2) {
      Values gradient = numbers(i, step);
      const spillway_tensor tensor = tensor_of(std::span<float>(gradient), kShape);
      for (;;) {
        const spillway_status status =
            spillway_gradient_ready(threads_, i, &tensor, SPILLWAY_READY_NOW, nullptr);
        if (status == SPILLWAY_OK) break;
        EXPECT_EQ(status, SPILLWAY_INVALID_ARGUMENT);
        EXPECT_THAT(spillway_last_message(), HasSubstr("ahead of its update"));
        std::this_thread::yield();
      }
      ++progress_;
    }
  }

  /// Makes the other calls for any thread until `others` threads have ended.
  void watch(unsigned seed, const std::atomic<int>& others) {
    std::minstd_rand random(seed);
    while (others > 0) {
      const auto parameter = static_cast<std::uint32_t>(random() % kParameters);
      std::int32_t read = 0;
      const spillway_status status = spillway_wait(threads_, parameter);
      if (status == SPILLWAY_OK) {
        expect_values(values_of(threads_, parameter), parameter);
      } else {
        EXPECT_EQ(status, SPILLWAY_INVALID_ARGUMENT);
        EXPECT_THAT(spillway_last_message(), HasSubstr("is left"));
      }
      EXPECT_EQ(spillway_gradient_read(threads_, parameter, &read), SPILLWAY_OK);
      EXPECT_EQ(read, 1);
    }
  }

  void step(int step) {
    std::atomic<int> others = 3;
    {
      std::vector<std::jthread> threads;
      threads.emplace_back([&] {
        pass();
        --others;
      });
      for (const std::uint32_t first : {0U, 1U}) {
        threads.emplace_back([&, first] {
          hand_over(first, step);
          --others;
        });
      }
      for (const unsigned seed : {1U, 2U}) {
        threads.emplace_back([&, seed] { watch(10 * seed, others); });
      }
    }
    EXPECT_EQ(spillway_step(threads_, nullptr, nullptr), SPILLWAY_OK) << spillway_last_message();
    for (std::uint32_t i = 0; i < kParameters; ++i) {
      Values gradient = numbers(i, step);
      const spillway_tensor tensor = tensor_of(std::span<float>(gradient), kShape);
      EXPECT_EQ(spillway_gradient_ready(alone_, i, &tensor, SPILLWAY_READY_NOW, nullptr), 0);
    }
    EXPECT_EQ(spillway_step(alone_, nullptr, nullptr), SPILLWAY_OK) << spillway_last_message();
  }

  spillway_trainer* threads_ = nullptr;
  spillway_trainer* alone_ = nullptr;
  std::atomic<int> progress_ = 0;
};

TEST_F(CThreads, PassesGradientsAndWaitsGoOnAtOnce) {
  const std::future<void> all = std::async(std::launch::async, [&] {
    for (int i = 1; i <= 60; ++i) step(i);
  });
  for (int before = -1; all.wait_for(std::chrono::seconds(20)) != std::future_status::ready;) {
    const int now = progress_;
    if (now == before) {  // threads that wait for each other cannot be ended
      ADD_FAILURE() << "no pass and no gradient for 20 s";
      std::abort();
    }
    before = now;
  }
  EXPECT_EQ(spillway_synchronize(threads_), SPILLWAY_OK);
  for (std::uint32_t i = 0; i < kParameters; ++i) expect_values(values_of(threads_, i), i);
}

}  // namespace
}  // namespace spillway::capi_test::threads_test
