// Gradients of a step that are read, replaced, dropped, or come after their norm: the bits are
// those of a trainer that is given the same sums at once.
#include <chrono>
#include <thread>

#include "runtime/base/error.hpp"
#include "tests/engine/embedded_fixture.hpp"

namespace spillway::engine::embedded_gradients_test {
namespace {

struct Step {
  const char* name;
  DType dtype;
  std::uint32_t gradients;  ///< 0: any number
  bool deferred;
};

class EmbeddedGradientsOf : public EmbeddedTrainerTest, public testing::WithParamInterface<Step> {
 protected:
  [[nodiscard]] EmbeddedOptions options() const {
    EmbeddedOptions options = options_for(GetParam().dtype);
    options.gradients_per_step = GetParam().gradients;
    options.defers_updates = GetParam().deferred;
    return options;
  }

  Tensor gradient(EmbeddedTrainer& trainer, std::uint32_t parameter) {
    Tensor sum(model_.sizes[parameter], -1.0F);
    trainer.read_gradient(parameter, sum);
    return sum;
  }
};

INSTANTIATE_TEST_SUITE_P(Steps, EmbeddedGradientsOf,
                         testing::Values(Step{"one", DType::fp32, 1, false},
                                         Step{"oneDeferred", DType::fp32, 1, true},
                                         Step{"oneInBf16", DType::bf16, 1, false},
                                         Step{"any", DType::bf16, 0, false},
                                         Step{"anyDeferred", DType::fp32, 0, true}),
                         [](const auto& step) { return std::string(step.param.name); });

TEST_P(EmbeddedGradientsOf, ReadsAndNormsChangeNoBit) {
  const auto trainer = make(options());
  const auto read = make(options());
  for (int step = 1; step <= 3; ++step) {
    for (std::uint32_t i = 0; i < read->size(); ++i) {
      give(*trainer, i, step);
      EXPECT_THAT(gradient(*read, i), testing::Each(0.0F));  // none has come
      give(*read, i, step);
      const Tensor sum = gradient(*read, i);
      Tensor given = model_.gradient(i, step);
      if (GetParam().dtype == DType::bf16) {
        for (float& value : given) value = from_bf16(to_bf16(value));
      }
      ASSERT_EQ(sum, given) << i;
      read->write_gradient(i, sum);
    }
    const EmbeddedStep update{.gradient_divisor = 2, .max_norm = 1};
    const double norm = read->grad_norm(2);
    read->reopen_gradients();
    EXPECT_EQ(read->step(update).grad_norm, norm);
    EXPECT_EQ(trainer->step(update).grad_norm, norm);
  }
  EXPECT_EQ(image(*read), image(*trainer));
  EXPECT_EQ(state(*read), state(*trainer));
}

TEST_P(EmbeddedGradientsOf, AStepTakesWhatTheyWereReplacedBy) {
  const auto trainer = make(options());
  const auto replaced = make(options());
  for (int step = 1; step <= 2; ++step) {
    backward(*trainer, step);
    backward(*replaced, step + 10);
    for (std::uint32_t i = 0; i < replaced->size(); ++i) {
      Tensor values = model_.gradient(i, step);
      // What is given is rounded, and so are sums where a step has one gradient of each.
      if (GetParam().dtype == DType::bf16 && GetParam().gradients == 0) {
        for (float& value : values) value = from_bf16(to_bf16(value));
      }
      replaced->write_gradient(i, values);
    }
    trainer->step({.max_norm = 1});
    replaced->step({.max_norm = 1});
  }
  EXPECT_EQ(image(*replaced), image(*trainer));
  EXPECT_EQ(state(*replaced), state(*trainer));
}

// Also while a deferred update of the step runs, and once its sums were discarded.
TEST_P(EmbeddedGradientsOf, AreThoseOfTheLastStepUntilTheNextCome) {
  const auto trainer = make(options());
  for (int step = 1; step <= 3; ++step) {
    std::vector<Tensor> sums;
    backward(*trainer, step);
    for (std::uint32_t i = 0; i < trainer->size(); ++i) sums.push_back(gradient(*trainer, i));
    if (step == 2) {
      trainer->discard_gradients();
    } else {
      trainer->step({.gradient_divisor = 2, .max_norm = 1});
    }
    for (std::uint32_t i = 0; i < trainer->size(); ++i) {
      Tensor last(model_.sizes[i], -1.0F);
      trainer->read_last_gradient(i, last);
      EXPECT_EQ(last, sums[i]) << step << ": " << i;
    }
  }
}

TEST_P(EmbeddedGradientsOf, OfOneParameterAreDropped) {
  const auto trainer = make(options());
  const auto dropped = make(options());
  backward(*trainer, 1);
  backward(*dropped, 1);
  static_cast<void>(dropped->leaf_sums());
  dropped->reopen_gradients();
  dropped->discard_gradient(4);
  EXPECT_THAT(gradient(*dropped, 4), testing::Each(0.0F));
  EXPECT_THROW(dropped->write_gradient(4, model_.gradient(4, 1)), Error);
  give(*dropped, 4, 1);
  trainer->step({.max_norm = 1});
  dropped->step({.max_norm = 1});
  EXPECT_EQ(image(*dropped), image(*trainer));
}

// A step with a given number of gradients computes its norm as soon as the last has come.
TEST_F(EmbeddedTrainerTest, ADroppedGradientIsMissingAgain) {
  model_.sizes = {3, 5, 7};
  model_.groups = {0, 0, 0};
  model_.values.resize(3);
  const EmbeddedOptions options = options_for();
  const auto trainer = make(options);
  for (std::uint32_t i = 1; i < trainer->size(); ++i) give(*trainer, i, 1);
  for (std::uint32_t i = 1; i < trainer->size(); ++i) trainer->discard_gradient(i);
  give(*trainer, 0, 1);
  for (std::uint32_t i = 1; i < trainer->size(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    give(*trainer, i, 1);
  }
  const auto other = make(options);
  backward(*other, 1);
  EXPECT_EQ(trainer->step({}).grad_norm, other->step({}).grad_norm);
}

TEST_F(EmbeddedTrainerTest, MoreGradientsMayComeAfterANormOfThose) {
  EmbeddedOptions options = options_for();
  options.gradients_per_step = 0;
  const auto trainer = make(options);
  const auto asked = make(options);
  for (int pass = 1; pass <= 3; ++pass) {
    backward(*trainer, pass);
    backward(*asked, pass);
    static_cast<void>(asked->leaf_sums());
    EXPECT_THROW(give(*asked, 0, pass), Error);
    asked->reopen_gradients();
  }
  EXPECT_EQ(asked->step({}).grad_norm, trainer->step({}).grad_norm);
  EXPECT_EQ(image(*asked), image(*trainer));
}

TEST_F(EmbeddedTrainerTest, GradientsAreReadAndWrittenWhole) {
  const auto trainer = make(options_for());
  backward(*trainer, 1);
  Tensor part(model_.sizes[1] - 1);
  EXPECT_THROW(trainer->read_gradient(1, part), Error);
  EXPECT_THROW(trainer->write_gradient(1, part), Error);
  EXPECT_THROW(trainer->read_gradient(1, {}), Error);
  EXPECT_THROW(trainer->read_gradient(5, part), Error);
  EXPECT_THROW(trainer->read_last_gradient(1, part), Error);
}

}  // namespace
}  // namespace spillway::engine::embedded_gradients_test
