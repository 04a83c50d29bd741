// Parameters and gradients in the memory of a GPU: the bits of training on the host, whatever the
// order of the streams, and what is refused. The framework's stream runs as late as it may.
#include <chrono>
#include <fstream>
#include <string>

#include "offload/cuda/cuda_device.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/embedded/plan/layout.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tests/engine/device_framework.hpp"
#include "tests/engine/embedded_fixture.hpp"
#include "tests/engine/stream_orders.hpp"

namespace spillway::engine::embedded_device_test {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = offload::ExternalWork::Kind;

constexpr int kSteps = 4;

class EmbeddedDeviceTest : public EmbeddedTrainerTest {
 protected:
  void SetUp() override {
    const std::string reason = offload::cuda_unavailable_reason();
    if (!reason.empty()) GTEST_SKIP() << "this machine has no usable GPU: " << reason;
  }

  static EmbeddedOptions on_device(EmbeddedOptions options) {
    options.device = config::DeviceKind::cuda;
    return options;
  }

  /// Of streamed parameters the first stays, and two units have two each. They take turns in 16 Ki
  /// elements.
  std::unique_ptr<EmbeddedTrainer> make_streamed(const EmbeddedOptions& options) {
    const auto starts = model_.starts(options.dtype);
    auto parameters = model_.parameters(starts);
    for (std::uint32_t i = 1; i < parameters.size(); ++i) parameters[i].unit = (i - 1) / 2;
    return std::make_unique<EmbeddedTrainer>(options, parameters);
  }

  std::vector<std::byte> gradient_bytes(const EmbeddedTrainer& trainer, std::uint32_t parameter,
                                        int number) const {
    const Tensor gradient = model_.gradient(parameter, number);
    const auto wide = bytes_of(gradient);
    return trainer.options().dtype == DType::fp32 ? std::vector<std::byte>(wide.begin(), wide.end())
                                                  : in_bf16(gradient);
  }

  void give(EmbeddedTrainer& trainer, DeviceFramework& framework, std::uint32_t parameter,
            int number, Kind kind) {
    await_gradient(trainer, parameter);
    const auto bytes = gradient_bytes(trainer, parameter, number);
    trainer.add_device_gradient(parameter, framework.gradient(parameter, bytes, kind));
  }

  /// Delivers what one backward pass would.
  void backward(EmbeddedTrainer& trainer, DeviceFramework& framework, int number, Kind kind) {
    for (std::uint32_t i = 5; i-- > 0;) {
      const bool enters = trainer.options().device_memory && i % 2 == 0 && i > 0;
      if (enters) trainer.enter((i - 1) / 2, EmbeddedPass::backward);
      give(trainer, framework, i, number, kind);
      const bool leaves = trainer.options().device_memory && i % 2 == 1;
      if (leaves) trainer.leave((i - 1) / 2, framework.work());
    }
  }

  /// The framework reads every unit on the device, and finds what is kept on the host.
  void forward(EmbeddedTrainer& trainer, DeviceFramework& framework) {
    for (std::uint32_t unit = 0; trainer.options().device_memory && unit < 2; ++unit) {
      trainer.enter(unit, EmbeddedPass::forward);
      for (const std::uint32_t i : {2 * unit + 1, 2 * unit + 2}) {
        framework.read(i, trainer.device_values(i));
      }
      trainer.leave(unit, framework.work());
    }
    for (std::uint32_t i = 1; trainer.options().device_memory && i < 5; ++i) {
      const auto kept = trainer.values(i);
      ASSERT_EQ(framework.was_read(i, kept.size()),
                std::vector<std::byte>(kept.begin(), kept.end()))
          << i;
    }
  }

  /// The gradients of a step come while a deferred update of the last one runs.
  std::vector<std::byte> train(EmbeddedTrainer& trainer, DeviceFramework& framework, Kind kind,
                               bool releases = false) {
    const int passes = static_cast<int>(std::max(trainer.options().gradients_per_step, 1U));
    for (int step = 1; step <= kSteps; ++step) {
      for (int pass = 0; pass < passes; ++pass) {
        forward(trainer, framework);
        backward(trainer, framework, 10 * step + pass, kind);
      }
      trainer.step({.gradient_divisor = 2, .max_norm = 1, .readers = framework.work()});
      if (!releases) continue;
      trainer.release_device(framework.work());
      trainer.resume_device();
    }
    return image(trainer, framework);
  }
  /// The same by a trainer on the host.
  std::vector<std::byte> train_on_host(EmbeddedTrainer& trainer) {
    const int passes = static_cast<int>(std::max(trainer.options().gradients_per_step, 1U));
    for (int step = 1; step <= kSteps; ++step) {
      for (int pass = 0; pass < passes; ++pass) {
        EmbeddedTrainerTest::backward(trainer, 10 * step + pass);
      }
      trainer.step({.gradient_divisor = 2, .max_norm = 1});
    }
    return EmbeddedTrainerTest::image(trainer);
  }

  /// Returns all values, those on the device as the framework reads them.
  std::vector<std::byte> image(EmbeddedTrainer& trainer, DeviceFramework& framework) {
    trainer.wait();
    std::vector<std::byte> all;
    for (std::uint32_t i = 0; i < trainer.size(); ++i) {
      const auto values = trainer.values(i);
      if (trainer.options().device_memory && i > 0) {
        all.insert(all.end(), values.begin(), values.end());
        continue;
      }
      framework.read(i, values);
      const auto read = framework.was_read(i, values.size());
      all.insert(all.end(), read.begin(), read.end());
    }
    return all;
  }
};

struct DeviceCase {
  const char* name;
  DType dtype = DType::fp32;
  bool on_disk = false;
  bool deferred = false;
  bool streamed = false;
  bool releases = false;
  std::uint32_t gradients = 1;
  Kind ready = Kind::stream;
};

class EmbeddedDevices : public EmbeddedDeviceTest,
                        public testing::WithParamInterface<DeviceCase> {};

TEST_P(EmbeddedDevices, HaveTheBitsOfTheHost) {
  const DeviceCase& it = GetParam();
  EmbeddedOptions options = options_for(it.dtype);
  options.gradients_per_step = it.gradients;
  const auto host = make(options);
  const auto expected = train_on_host(*host);
  for_each_stream_order([&](std::uint64_t order) {
    EmbeddedOptions device = on_device(options);
    device.defers_updates = it.deferred;
    if (it.on_disk) device.nvme = {directory_.path() / "swap"};
    if (it.streamed) device.device_memory = Bytes{20 * 1024 * size_of(it.dtype)};
    DeviceFramework framework(model_.sizes);
    const auto trainer = it.streamed ? make_streamed(device) : make(device);
    EXPECT_TRUE(train(*trainer, framework, it.ready, it.releases) == expected) << "order " << order;
    EXPECT_EQ(state(*trainer), state(*host)) << "order " << order;
  });
}

INSTANTIATE_TEST_SUITE_P(
    , EmbeddedDevices,
    testing::Values(DeviceCase{.name = "fp32"},
                    DeviceCase{.name = "fp32_event_disk", .on_disk = true, .ready = Kind::event},
                    DeviceCase{.name = "fp32_deferred_sums", .deferred = true, .gradients = 3},
                    DeviceCase{.name = "split_disk_deferred",
                               .dtype = DType::bf16,
                               .on_disk = true,
                               .deferred = true,
                               .ready = Kind::event},
                    DeviceCase{.name = "split_sums", .dtype = DType::bf16, .gradients = 2},
                    DeviceCase{.name = "fp32_streamed", .streamed = true},
                    DeviceCase{.name = "released", .deferred = true, .releases = true},
                    DeviceCase{.name = "streamed_released", .streamed = true, .releases = true},
                    DeviceCase{.name = "split_streamed_deferred",
                               .dtype = DType::bf16,
                               .deferred = true,
                               .streamed = true},
                    DeviceCase{.name = "split_streamed_disk_sums",
                               .dtype = DType::bf16,
                               .on_disk = true,
                               .streamed = true,
                               .gradients = 2,
                               .ready = Kind::event}),
    [](const auto& each) { return std::string(each.param.name); });

TEST_F(EmbeddedDeviceTest, MovesTheParametersOfItsPlanAndEachGradientOnce) {
  EmbeddedOptions options = on_device(options_for(DType::bf16));
  const auto starts = model_.starts(options.dtype);
  const EmbeddedLayout layout = make_layout(options, model_.parameters(starts));
  const plan::StepPlan step =
      plan::build_training_step(layout.workload, embedded_placement(options, layout));
  const Bytes gradients{(3 + 5000 + 257 + 1 + 9000) * 2};
  options.traces = true;
  DeviceFramework framework(model_.sizes);
  const auto begin = Clock::now();
  const auto trainer = make(options);
  train(*trainer, framework, Kind::stream);
  const EmbeddedUse use = trainer->use();
  EXPECT_EQ(use.downloaded, Bytes{gradients.value() * kSteps});
  EXPECT_EQ(use.uploaded, Bytes{plan::bytes_moved(step, plan::kUploadParams).value() * kSteps});
  const double seconds = use.busy_seconds[static_cast<std::size_t>(plan::Lane::d2h)];
  EXPECT_GT(seconds, 0);
  EXPECT_LT(seconds, std::chrono::duration<double>(Clock::now() - begin).count());
  const std::filesystem::path path = directory_.path() / "trace.json";
  trainer->write_trace(path);
  std::ifstream text(path);
  std::size_t ranges = 0;
  for (std::string line; std::getline(text, line);) {
    ranges += static_cast<std::size_t>(line.find("download_grads") != std::string::npos);
  }
  EXPECT_EQ(ranges, kSteps * model_.sizes.size());
}

/// The rest of a backward pass hides the norms of the blocks whose gradients are there.
TEST_F(EmbeddedDeviceTest, NormsAreComputedBeforeTheStepAsksForThem) {
  DeviceFramework framework(model_.sizes);
  const auto trainer = make(on_device(options_for()));
  const auto norms = [&] {
    return trainer->use().busy_seconds[static_cast<std::size_t>(plan::Lane::cpu)];
  };
  backward(*trainer, framework, 1, Kind::stream);
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  while (norms() == 0 && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  EXPECT_GT(norms(), 0);
}

TEST_F(EmbeddedDeviceTest, AnUpdateWaitsForReadersThatAreNamed) {
  for_each_stream_order([&](std::uint64_t order) {
    DeviceFramework framework(model_.sizes);
    const auto trainer = make(on_device(options_for()));
    const auto start = image(*trainer, framework);
    backward(*trainer, framework, 1, Kind::stream);
    static_cast<void>(trainer->grad_norm());
    for (std::uint32_t i = 0; i < 5; ++i) framework.read(i, trainer->values(i));
    trainer->step({.readers = framework.work()});
    std::vector<std::byte> read;
    for (std::uint32_t i = 0; i < 5; ++i) {
      const auto one = framework.was_read(i, trainer->values(i).size());
      read.insert(read.end(), one.begin(), one.end());
    }
    EXPECT_TRUE(read == start) << "order " << order;
    EXPECT_FALSE(image(*trainer, framework) == start);
  });
}

TEST_F(EmbeddedDeviceTest, TakesValuesThatTheFrameworkStillWrites) {
  for_each_stream_order([&](std::uint64_t order) {
    DeviceFramework framework(model_.sizes);
    const auto trainer = make(on_device(options_for()));
    const Tensor other = normal(model_.sizes[1], 77);
    framework.write(1, trainer->values(1), bytes_of(other));
    trainer->take_values(1, framework.work());
    Tensor master(other.size());
    trainer->read_state(1, master, {}, {});
    EXPECT_EQ(master, other) << "order " << order;
  });
}

TEST_F(EmbeddedDeviceTest, GoesOnFromACheckpointOfTheHost) {
  const auto host = make(options_for());
  EmbeddedTrainerTest::train(*host, 1, 2);
  host->save(directory_.path() / "checkpoint");
  const auto expected = train_on_host(*host);
  DeviceFramework framework(model_.sizes);
  const auto trainer = make(on_device(options_for()));
  trainer->load(directory_.path() / "checkpoint");
  EXPECT_TRUE(train(*trainer, framework, Kind::stream) == expected);
}

TEST_F(EmbeddedDeviceTest, OnlyAsMuchOfGradientsWaitsAsIsAsked) {
  EmbeddedOptions options = on_device(options_for());
  options.gradient_memory = Bytes{5000 * sizeof(float)};
  DeviceFramework framework(model_.sizes);
  const auto trainer = make(options);
  give(*trainer, framework, 1, 1, Kind::stream);
  give(*trainer, framework, 2, 1, Kind::stream);
  EXPECT_FALSE(trainer->reads_gradient(1));
  // One that is larger than that is taken alone.
  give(*trainer, framework, 4, 1, Kind::stream);
  EXPECT_FALSE(trainer->reads_gradient(2));
  trainer->discard_gradients();
  EXPECT_FALSE(trainer->reads_gradient(4));
}

TEST_F(EmbeddedDeviceTest, ALongGradientComesInParts) {
  model_.sizes = {3'000'000, 70};  // 12 MB, of which 4 MiB land at a time
  model_.groups = {0, 1};
  model_.values = {normal(model_.sizes[0], 1), normal(model_.sizes[1], 2)};
  EmbeddedOptions options = options_for();
  options.gradients_per_step = 2;
  const auto host = make(options);
  const auto trainer = make(on_device(options));
  DeviceFramework framework(model_.sizes);
  for (int number = 1; number <= 2; ++number) {
    for (std::uint32_t i = 0; i < 2; ++i) {
      EmbeddedTrainerTest::give(*host, i, number);
      give(*trainer, framework, i, number, Kind::stream);
    }
  }
  host->step({});
  trainer->step({});
  EXPECT_TRUE(image(*trainer, framework) == EmbeddedTrainerTest::image(*host));
}

TEST_F(EmbeddedDeviceTest, GradientsOfHostAndDeviceAreAddedInTheirOrder) {
  EmbeddedOptions options = options_for();
  options.gradients_per_step = 3;
  const auto host = make(options);
  const auto trainer = make(on_device(options));
  DeviceFramework framework(model_.sizes);
  for (std::uint32_t i = 0; i < 5; ++i) {
    for (int number = 1; number <= 3; ++number) EmbeddedTrainerTest::give(*host, i, number);
    give(*trainer, framework, i, 1, Kind::stream);
    EmbeddedTrainerTest::give(*trainer, i, 2);
    give(*trainer, framework, i, 3, Kind::event);
  }
  host->step({});
  trainer->step({});
  EXPECT_TRUE(image(*trainer, framework) == EmbeddedTrainerTest::image(*host));
}

TEST_F(EmbeddedDeviceTest, TheDefaultStreamOfCudaIsAStream) {
  DeviceFramework framework(model_.sizes);
  const auto trainer = make(on_device(options_for()));
  backward(*trainer, framework, 1, Kind::stream);
  EXPECT_EQ(trainer->step({.readers = {Kind::stream, nullptr}}).step, 1U);
}

class EmbeddedDeviceMisuse : public EmbeddedDeviceTest {
 protected:
  template <class Call>
  static std::string refusal(const Call& call) {
    try {
      call();
    } catch (const Error& error) {
      return std::string(name_of(error.code())) + ": " + error.what();
    }
    return "no error";
  }
};

TEST_F(EmbeddedDeviceMisuse, RefusesMemoryThatIsNotTheDevicesAndGoesOn) {
  DeviceFramework framework(model_.sizes);
  const auto trainer = make(on_device(options_for()));
  const auto host = framework.host_memory(1).first(5000 * sizeof(float));
  EXPECT_THAT(refusal([&] {
                trainer->add_device_gradient(1, {.values = {host.data(), host.size()}});
              }),
              testing::AllOf(testing::StartsWith("invalid_argument"),
                             testing::HasSubstr("are not memory of GPU 0")));
  EXPECT_THAT(refusal([&] {
                auto gradient = framework.gradient(1, host, Kind::stream);
                gradient.ready = {Kind::event, nullptr};
                trainer->add_device_gradient(1, gradient);
              }),
              testing::HasSubstr("the event to wait for is a null pointer"));
  EXPECT_THAT(
      refusal([&] { trainer->add_device_gradient(0, framework.gradient(1, host, Kind::stream)); }),
      testing::HasSubstr("the gradient of \"layer.0\" has 20000 bytes"));
  const auto expected = train_on_host(*make(options_for()));
  EXPECT_TRUE(train(*trainer, framework, Kind::stream) == expected);
}

TEST_F(EmbeddedDeviceMisuse, ATrainerOnTheHostTakesNothingOfAGpu) {
  DeviceFramework framework(model_.sizes);
  const auto trainer = make(options_for());
  const auto bytes = gradient_bytes(*trainer, 1, 1);
  EXPECT_THAT(
      refusal([&] { trainer->add_device_gradient(1, framework.gradient(1, bytes, Kind::stream)); }),
      testing::HasSubstr("the trainer's device is the host; make it for cuda"));
  EmbeddedTrainerTest::backward(*trainer, 10);
  EXPECT_THAT(refusal([&] { trainer->step({.readers = framework.work()}); }),
              testing::HasSubstr("the trainer's device is the host; make it for cuda"));
  trainer->step({});
}

TEST_F(EmbeddedDeviceMisuse, SaysWhatDoesNotFitAndWhichGpuIsNotThere) {
  EmbeddedOptions options = on_device(options_for());
  options.device_index = 99;
  EXPECT_THAT(refusal([&] { make(options); }), testing::HasSubstr("there is no GPU 99"));
  options.device_index = 0;
  options.device_memory = 70_KiB;
  EXPECT_THAT(refusal([&] { make_streamed(options); }),
              testing::StartsWith("does_not_fit: does not fit: 16.0 KiB of parameters stay"));
  options.device_memory = 1_MiB;
  options.host_memory = 64_KiB;
  EXPECT_THAT(refusal([&] { make_streamed(options); }), testing::StartsWith("does_not_fit"));
}

}  // namespace
}  // namespace spillway::engine::embedded_device_test
