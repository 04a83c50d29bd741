// The memory of the device is given back between steps and taken again: how much of it there is,
// equal bits, and what can be called meanwhile. The device is a part of host memory.
#include <functional>

#include "runtime/base/error.hpp"
#include "runtime/engine/embedded/parts.hpp"
#include "runtime/engine/embedded/plan/needs.hpp"
#include "tests/engine/embedded_fixture.hpp"

namespace spillway::engine::embedded_release_test {
namespace {

using offload::MemoryKind;

constexpr const char* kReleased = "the memory of the device is released; call resume_device first";

/// The first parameter and the first frozen tensor stay on the device; others are of two units.
class EmbeddedRelease : public EmbeddedTrainerTest {
 protected:
  [[nodiscard]] std::vector<EmbeddedParameter> parameters() const {
    auto list = model_.parameters(starts_);
    for (std::uint32_t i = 1; i < list.size(); ++i) list[i].unit = (i - 1) / 2;
    return list;
  }
  [[nodiscard]] std::vector<FrozenTensor> frozen() const {
    std::vector<FrozenTensor> list;
    for (std::uint32_t i = 0; i < frozen_.size(); ++i) {
      list.push_back({.name = "frozen " + std::to_string(i),
                      .bytes = Bytes{frozen_[i].size() * sizeof(float)},
                      .values = bytes_of(frozen_[i]).data()});
    }
    list.back().unit = 1;
    return list;
  }
  [[nodiscard]] static EmbeddedOptions streaming() {
    EmbeddedOptions options = options_for();
    options.device_memory = 1_MiB;
    return options;
  }
  [[nodiscard]] std::unique_ptr<EmbeddedTrainer> make(const EmbeddedOptions& options) const {
    return std::make_unique<EmbeddedTrainer>(options, parameters(), frozen());
  }

  static std::vector<std::byte> copy_of(std::span<const std::byte> bytes) {
    return {bytes.begin(), bytes.end()};
  }
  static void fill(std::span<std::byte> floats, float value) {
    for (std::size_t i = 0; i < floats.size(); i += sizeof(float)) {
      std::memcpy(floats.data() + i, &value, sizeof(float));
    }
  }

  /// One step, in whose passes the units are where they are kept.
  void step(EmbeddedTrainer& trainer, int number) {
    for (const std::uint32_t unit : {0U, 1U}) {
      trainer.enter(unit, EmbeddedPass::forward);
      for (const std::uint32_t i : {2 * unit + 1, 2 * unit + 2}) {
        EXPECT_EQ(copy_of(trainer.device_values(i)), copy_of(trainer.values(i)));
      }
      if (unit == 1) {
        EXPECT_EQ(copy_of(trainer.device_frozen(2)), copy_of(bytes_of(frozen_[2])));
      }
      trainer.leave(unit);
    }
    for (const std::uint32_t unit : {1U, 0U}) {
      trainer.enter(unit, EmbeddedPass::backward);
      for (const std::uint32_t i : {2 * unit + 2, 2 * unit + 1}) give(trainer, i, number);
      trainer.leave(unit);
    }
    give(trainer, 0, number);
    trainer.step({.max_norm = 1});
  }

  static void expect_refused(const std::function<void()>& call, const std::string& why) {
    try {
      call();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), testing::HasSubstr(why));
    }
  }

  std::vector<std::vector<std::byte>> starts_ = model_.starts(DType::fp32);
  std::vector<Tensor> frozen_{normal(70'000, 31), normal(3, 32), normal(400, 33)};
};

TEST_F(EmbeddedRelease, LeavesNoMemoryOnTheDeviceAndTakesAsMuchAgain) {
  EmbeddedParts parts(streaming(), parameters(), frozen());
  const auto used = [&](MemoryKind kind) { return parts.engine.backend().usage(kind).current; };
  const Bytes device = used(MemoryKind::device), host = used(MemoryKind::pinned);
  EXPECT_EQ(device,
            plan::total(needs_of(parts.options, parts.layout, parts.engine.placement()).items,
                        plan::Tier::device));
  EXPECT_GT(device, 300_KiB);
  for (int round = 0; round < 2; ++round) {
    parts.values.release_device(parts.layout, {});
    EXPECT_EQ(used(MemoryKind::device), Bytes{});
    EXPECT_EQ(used(MemoryKind::pinned), host);
    parts.values.resume_device(parts.layout);
    EXPECT_EQ(used(MemoryKind::device), device);
  }
  EXPECT_EQ(parts.engine.backend().usage(MemoryKind::device).high_water, device);
}

struct ReleaseCase {
  const char* name;
  bool on_disk = false;
  bool deferred = false;
};

class EmbeddedReleases : public EmbeddedRelease, public testing::WithParamInterface<ReleaseCase> {};

TEST_P(EmbeddedReleases, HaveTheBitsOfADeviceThatIsKept) {
  EmbeddedOptions options = streaming();
  options.defers_updates = GetParam().deferred;
  const auto kept = make(options);
  if (GetParam().on_disk) options.nvme = {directory_.path()};
  const auto yields = make(options);
  for (int number = 1; number <= 4; ++number) {
    for (EmbeddedTrainer* trainer : {kept.get(), yields.get()}) {
      step(*trainer, number);
      // On disk it is staged, and has yet to be written.
      if (number == 2) trainer->write_state(4, Tensor(model_.sizes[4], 0.5F), {}, {});
    }
    for (const bool released : {true, true, false, false}) {
      released ? yields->release_device() : yields->resume_device();  // beside an update at first
      EXPECT_EQ(yields->is_released(), released);
    }
  }
  EXPECT_TRUE(image(*yields) == image(*kept));
  EXPECT_EQ(state(*yields), state(*kept));
  for (std::uint32_t i = 0; i < frozen_.size(); ++i) {
    EXPECT_EQ(copy_of(yields->frozen_values(i)), copy_of(bytes_of(frozen_[i])));
  }
}

INSTANTIATE_TEST_SUITE_P(
    , EmbeddedReleases,
    testing::Values(ReleaseCase{.name = "in_memory"},
                    ReleaseCase{.name = "deferred", .deferred = true},
                    ReleaseCase{.name = "on_disk_deferred", .on_disk = true, .deferred = true}),
    [](const auto& each) { return std::string(each.param.name); });

TEST_F(EmbeddedRelease, WhatIsWrittenMeanwhileIsTrained) {
  const auto kept = make(streaming());
  const auto yields = make(streaming());
  for (EmbeddedTrainer* trainer : {kept.get(), yields.get()}) {
    step(*trainer, 1);
    // On the device, and taken: what lies there goes along.
    fill(trainer->values(0), 0.5F);
    trainer->take_values(0);
    fill(trainer->frozen_values(1), 0.25F);
    if (trainer == yields.get()) {
      trainer->release_device();
      EXPECT_EQ(copy_of(trainer->values(0)), copy_of(bytes_of(Tensor(model_.sizes[0], 0.5F))));
      EXPECT_EQ(copy_of(trainer->frozen_values(1)), copy_of(bytes_of(Tensor(3, 0.25F))));
    }
    fill(trainer->values(0), 2);
    trainer->take_values(0);
    fill(trainer->frozen_values(0), 3);
    const Tensor master(model_.sizes[1], 4);
    trainer->write_state(1, master, {}, {});
    trainer->resume_device();
    EXPECT_EQ(copy_of(trainer->frozen_values(0)), copy_of(bytes_of(Tensor(frozen_[0].size(), 3))));
    step(*trainer, 2);
  }
  EXPECT_TRUE(image(*yields) == image(*kept));
  EXPECT_EQ(state(*yields), state(*kept));
}

TEST_F(EmbeddedRelease, ACheckpointIsSavedMeanwhileAndLoadedAfterwards) {
  const auto trainer = make(streaming());
  step(*trainer, 1);
  trainer->release_device();
  trainer->save(directory_.path() / "meanwhile");
  const auto saved = state(*trainer);
  trainer->resume_device();
  step(*trainer, 2);
  const auto next = image(*trainer);
  trainer->load(directory_.path() / "meanwhile");
  EXPECT_EQ(state(*trainer), saved);
  step(*trainer, 2);
  EXPECT_TRUE(image(*trainer) == next);
}

TEST_F(EmbeddedRelease, CallsThatNeedTheDeviceAreRefusedMeanwhile) {
  const auto trainer = make(streaming());
  const auto kept = make(streaming());
  trainer->save(directory_.path() / "saved");
  trainer->release_device();
  for (const std::function<void()>& call : std::initializer_list<std::function<void()>>{
           [&] { trainer->enter(0, EmbeddedPass::forward); },
           [&] { static_cast<void>(trainer->device_values(0)); },
           [&] { static_cast<void>(trainer->device_frozen(0)); }, [&] { give(*trainer, 0, 1); },
           [&] { static_cast<void>(trainer->grad_norm()); },
           [&] { static_cast<void>(trainer->leaf_sums()); }, [&] { trainer->step({}); },
           [&] { trainer->load(directory_.path() / "saved"); }}) {
    expect_refused(call, kReleased);
  }
  trainer->discard_gradients();
  trainer->wait();
  trainer->resume_device();
  for (EmbeddedTrainer* each : {trainer.get(), kept.get()}) step(*each, 1);
  EXPECT_TRUE(image(*trainer) == image(*kept));
}

TEST_F(EmbeddedRelease, APassOrGradientsOfTheStepKeepTheDevice) {
  const auto trainer = make(streaming());
  trainer->enter(1, EmbeddedPass::forward);
  expect_refused([&] { trainer->release_device(); }, "unit 1 was entered and not left");
  EXPECT_EQ(copy_of(trainer->device_values(3)), copy_of(trainer->values(3)));
  trainer->leave(1);
  give(*trainer, 0, 1);
  expect_refused([&] { trainer->release_device(); }, "gradients of this step are there already");
  EXPECT_FALSE(trainer->is_released());
  trainer->discard_gradients();
  trainer->release_device();
  EXPECT_TRUE(trainer->is_released());
}

TEST_F(EmbeddedRelease, ATrainerThatEndsMeanwhileLeavesTheValues) {
  const auto trainer = make(streaming());
  step(*trainer, 1);
  const auto values = image(*trainer);
  trainer->release_device();
  std::vector<std::span<std::byte>> places;
  for (std::uint32_t i = 0; i < trainer->size(); ++i) places.push_back(trainer->values(i));
  const std::span<std::byte> frozen = trainer->frozen_values(0);
  const EndedMemory memory = trainer->end();
  std::vector<std::byte> left;
  for (const auto place : places) left.insert(left.end(), place.begin(), place.end());
  EXPECT_TRUE(left == values);
  EXPECT_EQ(copy_of(frozen), copy_of(bytes_of(frozen_[0])));
}

/// Where nothing is streamed nothing is on the device, and the calls are the same.
TEST_F(EmbeddedRelease, ATrainerOfTheHostHasNothingToFree) {
  const auto trainer = EmbeddedTrainerTest::make(options_for());
  const std::span<std::byte> values = trainer->values(0);
  trainer->release_device();
  EXPECT_EQ(trainer->values(0).data(), values.data());
  expect_refused([&] { give(*trainer, 0, 1); }, kReleased);
  trainer->resume_device();
  train(*trainer, 1, 2);
}

}  // namespace
}  // namespace spillway::engine::embedded_release_test
