// Streamed parameters: what the framework finds on the device, how much of it there is, and that
// training has the bits of parameters that stay where they are.
#include <fstream>
#include <functional>
#include <sstream>

#include "runtime/base/error.hpp"
#include "tests/engine/embedded_fixture.hpp"

namespace spillway::engine::embedded_streaming_test {
namespace {

constexpr std::uint32_t kUnits = 6;
constexpr std::size_t kEach = 5000;

class EmbeddedStreamingTest : public testing::Test {
 protected:
  EmbeddedStreamingTest() {
    values_.push_back(normal(300, 1));  // of no unit
    for (std::uint32_t unit = 0; unit < kUnits; ++unit) {
      values_.push_back(normal(kEach, 10 + unit));
      values_.push_back(normal(77, 20 + unit));
    }
  }

  /// Each unit has a matrix that decays and a vector that does not.
  [[nodiscard]] std::vector<EmbeddedParameter> parameters(bool streamed) const {
    std::vector<EmbeddedParameter> list;
    for (std::uint32_t i = 0; i < values_.size(); ++i) {
      EmbeddedParameter& parameter = list.emplace_back();
      parameter.name = "parameter " + std::to_string(i);
      parameter.elements = values_[i].size();
      parameter.group = i % 2 == 0 && i > 0 ? 1 : 0;
      parameter.values = bytes_of(values_[i]).data();
      if (streamed && i > 0) parameter.unit = (i - 1) / 2;
    }
    return list;
  }

  [[nodiscard]] static EmbeddedOptions streaming(Bytes device) {
    EmbeddedOptions options = options_for();
    options.device_memory = device;
    return options;
  }

  [[nodiscard]] static std::vector<float> floats(std::span<std::byte> bytes) {
    const auto* first = reinterpret_cast<const float*>(bytes.data());
    return {first, first + bytes.size() / sizeof(float)};
  }

  [[nodiscard]] Tensor gradient(std::uint32_t parameter, int step) const {
    return normal(values_[parameter].size(), 500 * static_cast<std::uint64_t>(step) + parameter);
  }

  /// Enters a unit, compares what is there with where it is kept, and leaves it.
  static void visit(EmbeddedTrainer& trainer, std::uint32_t unit, EmbeddedPass pass) {
    trainer.enter(unit, pass);
    for (const std::uint32_t i : {2 * unit + 1, 2 * unit + 2}) {
      ASSERT_EQ(floats(trainer.device_values(i)), floats(trainer.values(i))) << i;
    }
    trainer.leave(unit);
  }

  void backward(EmbeddedTrainer& trainer, int step, bool streamed) {
    for (std::uint32_t unit = 0; streamed && unit < kUnits; ++unit) {
      visit(trainer, unit, EmbeddedPass::forward);
    }
    for (std::uint32_t unit = kUnits; unit-- > 0;) {
      if (streamed) trainer.enter(unit, EmbeddedPass::backward);
      trainer.add_gradient(2 * unit + 2, bytes_of(gradient(2 * unit + 2, step)));
      trainer.add_gradient(2 * unit + 1, bytes_of(gradient(2 * unit + 1, step)));
      if (streamed) trainer.leave(unit);
    }
    trainer.add_gradient(0, bytes_of(gradient(0, step)));
  }

  void train(EmbeddedTrainer& trainer, int step, bool streamed) {
    backward(trainer, step, streamed);
    trainer.step({.max_norm = 1});
  }

  std::vector<std::vector<float>> image(EmbeddedTrainer& trainer) {
    std::vector<std::vector<float>> all;
    for (std::uint32_t i = 0; i < trainer.size(); ++i) all.push_back(floats(trainer.values(i)));
    return all;
  }

  ScratchDirectory directory_{"streamed"};
  std::vector<Tensor> values_;
};

TEST_F(EmbeddedStreamingTest, TrainsInABudgetWithTheBitsOfParametersThatStay) {
  // In whole leaves of 4,096, one stays, and a unit has two and one: 16 KiB and 48 KiB.
  for (const Bytes budget : {64_KiB, 112_KiB, 1_MiB}) {
    EmbeddedTrainer streamed(streaming(budget), parameters(true));
    EmbeddedTrainer stays(options_for(), parameters(false));
    EXPECT_LE(plan::total(streamed.memory(), plan::Tier::device), budget);
    for (int step = 1; step <= 4; ++step) {
      train(streamed, step, true);
      train(stays, step, false);
    }
    EXPECT_EQ(image(streamed), image(stays));
  }
}

TEST_F(EmbeddedStreamingTest, ATraceHasRoomForEveryOperationOfItsPlans) {
  EmbeddedOptions options = streaming(112_KiB);
  options.nvme = {directory_.path()};
  options.traces = true;
  EmbeddedTrainer trainer(options, parameters(true));
  for (int step = 1; step <= 6; ++step) train(trainer, step, true);
  trainer.write_trace(directory_.path() / "trace.json");
  std::stringstream text;
  text << std::ifstream(directory_.path() / "trace.json").rdbuf();
  EXPECT_NE(text.str().find("\"dropped\":0}"), std::string::npos);
}

TEST_F(EmbeddedStreamingTest, AnUpdateMayRunBesideTheNextForwardPass) {
  for (const std::uint64_t gradients : {1U, 2U}) {
    EmbeddedOptions options = streaming(112_KiB);
    options.gradients_per_step = static_cast<std::uint32_t>(gradients);
    EmbeddedOptions other = options_for();
    other.gradients_per_step = options.gradients_per_step;
    options.defers_updates = true;
    EmbeddedTrainer deferred(options, parameters(true));
    EmbeddedTrainer stays(other, parameters(false));
    for (int step = 1; step <= 6; ++step) {
      for (std::uint64_t pass = gradients; pass-- > 0;) {
        backward(deferred, step + 10 * static_cast<int>(pass), true);
        backward(stays, step + 10 * static_cast<int>(pass), false);
      }
      deferred.step({.max_norm = 1});
      stays.step({.max_norm = 1});
      if (step == 3) {
        deferred.wait(0);
        EXPECT_EQ(floats(deferred.values(0)), floats(stays.values(0)));
        deferred.wait(4);
        EXPECT_EQ(floats(deferred.values(4)), floats(stays.values(4)));
      }
      if (step == 5) deferred.discard_gradients();
    }
    deferred.wait();
    EXPECT_EQ(image(deferred), image(stays));
  }
}

TEST_F(EmbeddedStreamingTest, GradientsWaitForAnUpdateThatReadsThoseBefore) {
  values_[0] = normal(3u << 20, 1);
  EmbeddedOptions options = streaming(16_MiB);
  options.defers_updates = true;
  EmbeddedTrainer deferred(options, parameters(true));
  EmbeddedTrainer stays(options_for(), parameters(false));
  const Tensor none(values_[0].size());
  for (EmbeddedTrainer* trainer : {&deferred, &stays}) {
    train(*trainer, 1, trainer == &deferred);
    trainer->add_gradient(0, bytes_of(none));
    for (std::uint32_t unit = 0; unit < kUnits && trainer == &deferred; ++unit) {
      visit(*trainer, unit, EmbeddedPass::forward);
    }
    for (std::uint32_t i = 1; i < trainer->size(); ++i) {
      trainer->add_gradient(i, bytes_of(gradient(i, 2)));
    }
    trainer->step({.max_norm = 1});
    trainer->wait();
  }
  EXPECT_EQ(image(deferred), image(stays));
  train(deferred, 3, true);
  EXPECT_THROW(deferred.add_gradient(12, bytes_of(gradient(12, 4))), Error);
  deferred.wait(12);
  deferred.add_gradient(12, bytes_of(gradient(12, 4)));
  deferred.discard_gradients();
  train(deferred, 4, true);
  deferred.enter(5, EmbeddedPass::forward);
  EXPECT_THROW(deferred.wait(12), Error);
  deferred.leave(5);
}

TEST_F(EmbeddedStreamingTest, FrozenTensorsComeWithTheirUnitAndAreNeverUpdated) {
  // Unit 0 has two frozen tensors beside its parameters, unit 6 has nothing else. The last one is
  // written where it is kept.
  const Tensor stays_there = normal(10, 40);
  const std::vector<Tensor> frozen{normal(9001, 41), normal(33, 42), normal(700, 43)};
  std::vector<FrozenTensor> tensors{
      {.name = "embedding", .bytes = Bytes{40}, .values = bytes_of(stays_there).data()}};
  for (std::uint32_t i = 0; i < frozen.size(); ++i) {
    tensors.push_back({.name = "base " + std::to_string(i),
                       .bytes = Bytes{frozen[i].size() * 4},
                       .unit = std::array{0U, 0U, 6U}[i],
                       .values = i == 2 ? nullptr : bytes_of(frozen[i]).data()});
  }
  // Two slots of 32 KiB for parameters and of 36,164 bytes beside what stays.
  const Bytes budget = 192_KiB;
  EmbeddedTrainer trainer(streaming(budget), parameters(true), tensors);
  EXPECT_LE(plan::total(trainer.memory(), plan::Tier::device), budget);
  std::ranges::copy(bytes_of(frozen[2]), trainer.frozen_values(3).begin());
  EmbeddedTrainer stays(options_for(), parameters(false));
  const auto visit_frozen = [&](std::uint32_t unit, EmbeddedPass pass) {
    trainer.enter(unit, pass);
    for (const std::uint32_t i : unit == 0 ? std::vector{1U, 2U} : std::vector{3U}) {
      EXPECT_EQ(floats(trainer.device_frozen(i)), frozen[i - 1]);
    }
    EXPECT_EQ(floats(trainer.device_frozen(0)), stays_there);
    trainer.leave(unit);
  };
  for (int step = 1; step <= 3; ++step) {
    for (const std::uint32_t unit : {0U, 6U}) visit_frozen(unit, EmbeddedPass::forward);
    visit_frozen(6, EmbeddedPass::backward);
    train(trainer, step, true);
    train(stays, step, false);
  }
  EXPECT_EQ(image(trainer), image(stays));
  // Four passes a step, each of 18 leaves and three tensors, and the updated leaf that stays there.
  const std::uint64_t pass = 18 * kLeafParameters * 4 + 36'164 + 2800;
  EXPECT_EQ(trainer.use().uploaded, Bytes{3 * (4 * pass + kLeafParameters * 4)});
  EXPECT_EQ(floats(trainer.frozen_values(0)), stays_there);
  for (std::uint32_t i = 1; i <= 3; ++i) {
    EXPECT_EQ(floats(trainer.frozen_values(i)), frozen[i - 1]);
  }
}

TEST_F(EmbeddedStreamingTest, UnitsMayBeEnteredInAnyOrder) {
  EmbeddedTrainer trainer(streaming(112_KiB), parameters(true));
  // An evaluation that stops, one that skips, a recomputation in backward, and the same unit twice.
  for (const std::uint32_t unit : {0U, 1U, 0U, 3U, 5U}) {
    visit(trainer, unit, EmbeddedPass::forward);
  }
  for (const std::uint32_t unit : {5U, 4U, 4U}) visit(trainer, unit, EmbeddedPass::backward);
  visit(trainer, 2, EmbeddedPass::forward);
  visit(trainer, 2, EmbeddedPass::backward);
  EmbeddedTrainer stays(options_for(), parameters(false));
  train(trainer, 1, true);
  train(stays, 1, false);
  EXPECT_EQ(image(trainer), image(stays));
}

TEST_F(EmbeddedStreamingTest, NoCallEndsAPassWhoseUnitIsEntered) {
  EmbeddedTrainer trainer(streaming(112_KiB), parameters(true));
  EmbeddedTrainer stays(options_for(), parameters(false));
  train(trainer, 1, true);
  train(stays, 1, false);
  trainer.save(directory_.path() / "saved");
  Tensor master(values_[5].size());
  trainer.read_state(5, master, {}, {});
  const std::vector<std::function<void()>> calls{
      [&] { trainer.step({}); },
      [&] { static_cast<void>(trainer.grad_norm()); },
      [&] { static_cast<void>(trainer.leaf_sums()); },
      [&] { trainer.discard_gradients(); },
      [&] { trainer.take_values(5); },
      [&] { trainer.forget_uploads(); },
      [&] { trainer.release_device(); },
      [&] { trainer.read_state(5, master, {}, {}); },
      [&] { trainer.write_state(5, master, {}, {}); },
      [&] { trainer.set_updates(7); },
      [&] { trainer.set_updates(5, 7); },
      [&] { trainer.save(directory_.path() / "other"); },
      [&] { trainer.load(directory_.path() / "saved"); },
  };
  for (const EmbeddedPass pass : {EmbeddedPass::forward, EmbeddedPass::backward}) {
    trainer.enter(2, pass);
    for (std::size_t i = 0; i < calls.size(); ++i) {
      EXPECT_THROW(calls[i](), Error) << i;
      EXPECT_EQ(floats(trainer.device_values(5)), floats(trainer.values(5))) << i;
    }
    trainer.leave(2);
  }
  train(trainer, 2, true);
  train(stays, 2, false);
  EXPECT_EQ(image(trainer), image(stays));
  trainer.enter(3, EmbeddedPass::backward);  // its pass ends with the object
}

TEST_F(EmbeddedStreamingTest, MissingGradientsAreZeroWhereAsked) {
  EmbeddedOptions options = streaming(112_KiB);
  options.missing_gradient = MissingGradient::zero;
  EmbeddedTrainer some(options, parameters(true));
  EmbeddedTrainer all(options_for(), parameters(false));
  for (int step = 1; step <= 3; ++step) {
    for (std::uint32_t i = 0; i < some.size(); ++i) {
      // Other parameters in each step: what the step before left there must not count.
      const bool missing = i % 3 == static_cast<std::uint32_t>(step % 3);
      const Tensor gradient = missing ? Tensor(values_[i].size()) : this->gradient(i, step);
      if (!missing) some.add_gradient(i, bytes_of(gradient));
      all.add_gradient(i, bytes_of(gradient));
    }
    EXPECT_EQ(some.step({.max_norm = 1}).grad_norm, all.step({.max_norm = 1}).grad_norm);
  }
  EXPECT_EQ(image(some), image(all));
}

TEST_F(EmbeddedStreamingTest, WhatStaysOnTheDeviceFollowsTheFramework) {
  EmbeddedTrainer trainer(streaming(112_KiB), parameters(true));
  const Tensor other = normal(300, 77);
  std::ranges::copy(bytes_of(other), trainer.values(0).begin());
  trainer.take_values(0);
  Tensor master(300);
  trainer.read_state(0, master, {}, {});
  EXPECT_EQ(master, other);
  const Tensor third = normal(300, 78);
  trainer.write_state(0, third, {}, {});
  EXPECT_EQ(floats(trainer.values(0)), third);
  // What was written beside it and is not taken yet stays.
  auto pair = parameters(true);
  const Tensor beside = normal(50, 79);
  pair.push_back({.name = "beside", .elements = 50, .values = bytes_of(beside).data()});
  EmbeddedTrainer two(streaming(112_KiB), pair);
  const auto last = static_cast<std::uint32_t>(pair.size() - 1);
  for (const std::uint32_t i : {0U, last}) std::ranges::fill(two.values(i), std::byte{1});
  two.take_values(0);
  two.take_values(last);
  for (const std::uint32_t i : {0U, last}) {
    EXPECT_TRUE(std::ranges::all_of(two.values(i), [](std::byte b) { return b == std::byte{1}; }));
  }
}

TEST_F(EmbeddedStreamingTest, SaysWhatDoesNotFitAndWhatIsOutOfTurn) {
  const auto code_of = [](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      return std::string(name_of(error.code())) + ": " + error.what();
    }
    return std::string("no error");
  };
  const auto starts_with = [](const std::string& text, const std::string& start) {
    return text.starts_with(start) ? "" : text;
  };
  EXPECT_EQ(starts_with(code_of([&] { EmbeddedTrainer(streaming(40_KiB), parameters(true)); }),
                        "does_not_fit: does not fit: 16.0 KiB of parameters stay"),
            "");
  EXPECT_EQ(starts_with(code_of([&] { EmbeddedTrainer(options_for(), parameters(true)); }),
                        "invalid_argument: parameter \"parameter 1\" is of unit 0"),
            "");
  auto gap = parameters(true);
  gap.erase(gap.begin() + 3, gap.begin() + 5);
  EXPECT_EQ(starts_with(code_of([&] { EmbeddedTrainer(streaming(1_MiB), gap); }),
                        "invalid_argument: \"parameter 5\" is of unit 2, and nothing is of unit 1"),
            "");
  const Tensor value = normal(4, 1);
  const std::vector<FrozenTensor> one{
      {.name = "base", .bytes = 16_B, .unit = 7, .values = bytes_of(value).data()}};
  EXPECT_EQ(starts_with(code_of([&] { EmbeddedTrainer(options_for(), parameters(false), one); }),
                        "invalid_argument: \"base\" is frozen, but no parameter is streamed"),
            "");
  EXPECT_EQ(starts_with(code_of([&] { EmbeddedTrainer(streaming(1_MiB), parameters(true), one); }),
                        "invalid_argument: \"base\" is of unit 7, and nothing is of unit 6"),
            "");
  EmbeddedTrainer trainer(streaming(112_KiB), parameters(true));
  EXPECT_EQ(starts_with(code_of([&] { trainer.leave(0); }),
                        "invalid_argument: unit 0 is left, but was not entered"),
            "");
  EXPECT_EQ(starts_with(code_of([&] { static_cast<void>(trainer.device_values(1)); }),
                        "invalid_argument: \"parameter 1\" is not on the device"),
            "");
  trainer.enter(1, EmbeddedPass::forward);
  EXPECT_EQ(starts_with(code_of([&] { trainer.enter(2, EmbeddedPass::forward); }),
                        "invalid_argument: unit 2 is entered before unit 1 is left"),
            "");
  trainer.leave(1);
  EXPECT_EQ(starts_with(code_of([&] { trainer.enter(9, EmbeddedPass::forward); }),
                        "invalid_argument: there is no unit 9; there are 6"),
            "");
  train(trainer, 1, true);
}

}  // namespace
}  // namespace spillway::engine::embedded_streaming_test
