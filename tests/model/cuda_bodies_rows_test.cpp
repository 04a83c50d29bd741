// Kernel bodies of norms, column sums, rope, activations and rounded sums against the
// host Ops: packs and tails, strides, heads, aliasing, groups of one row and of many.
#include <numeric>

#include "runtime/model/rope_frequencies.hpp"
#include "tests/model/cuda_bodies_support.hpp"

namespace spillway::model::cuda_bodies_rows_test {
namespace {

class CudaRows : public CudaBodies {
 protected:
  enum class Place { apart, over_out_gradient, over_residual };

  /// Rows lie `gap` elements apart and start `shift` elements into their memory.
  void check_norm(const NormShape& s, bool bias, Place place, std::uint64_t gap = 0,
                  std::size_t shift = 0) {
    SCOPED_TRACE(testing::Message()
                 << s.tokens << "x" << s.heads << " rows of " << s.width << ", gap " << gap
                 << ", shift " << shift << (bias ? ", bias" : ""));
    const std::uint64_t stride = s.heads * s.width + gap;
    const std::size_t count = s.tokens * stride + shift;
    const Operand x = random(count, 2, 1);
    const Operand w = random(s.width + shift, 0.3F, 1);
    const Operand b = random(s.width + shift);
    const Operand dy = random(count);
    const Operand residual = random(count);
    const std::vector<float> before(s.width, 0.75F);
    compare([&](Ops& ops) {
      TestMemory out = elements(count);
      TestMemory statistics = floats(2 * s.rows());
      ops.norm_forward(s, {.input = {from(x.memory, shift), stride},
                           .weight = from(w.memory, shift),
                           .bias = bias ? from(b.memory, shift) : Tensor{},
                           .out = {from(out, shift), stride},
                           .statistics = statistics.device().as<float>()});
      TestMemory dx = place == Place::apart               ? elements(count)
                      : place == Place::over_out_gradient ? copy(dy.memory)
                                                          : copy(residual.memory);
      const Tensor over = from(dx, shift);
      TestMemory dw{std::span<const float>(before)};
      TestMemory db = floats(bias ? s.width : 0);
      const TestMemory space(ops.reduction_workspace(s.tokens, 2 * s.width).value());
      NormBackwardArguments a{
          .input = {from(x.memory, shift), stride},
          .weight = from(w.memory, shift),
          .out_gradient = {place == Place::over_out_gradient ? over : from(dy.memory, shift),
                           stride},
          .statistics = statistics.device().as<const float>(),
          .residual_gradient = {},
          .input_gradient = {over, stride},
          .weight_gradient = {dw.device().as<float>(), false},
          .bias_gradient = bias ? Gradient{db.device().as<float>(), true} : Gradient{},
          .workspace = space.device()};
      if (place == Place::over_residual) a.residual_gradient = {over, stride};
      if (place == Place::over_out_gradient) {
        a.residual_gradient = {from(residual.memory, shift), stride};
      }
      ops.norm_backward(s, a);
      Results results;
      results.push_back({"out", std::move(out), dtype_});
      results.push_back({"statistics", std::move(statistics), DType::fp32});
      results.push_back({"input gradient", std::move(dx), dtype_});
      results.push_back({"weight gradient", std::move(dw), DType::fp32});
      results.push_back({"bias gradient", std::move(db), DType::fp32});
      return results;
    });
  }

  void check_bias_gradient(std::size_t rows, std::size_t columns) {
    SCOPED_TRACE(testing::Message() << rows << " rows of " << columns);
    const Operand x = random(rows * columns, 1, 0.1F);
    compare([&](Ops& ops) {
      TestMemory gradient = floats(columns);
      const TestMemory space(ops.reduction_workspace(rows, columns).value());
      for (const bool first : {true, false}) {
        ops.bias_gradient(rows, {x.device(), columns}, {gradient.device().as<float>(), first},
                          space.device());
      }
      Results results;
      results.push_back({"gradient", std::move(gradient), DType::fp32});
      return results;
    });
  }

  void check_rope(std::uint32_t heads, std::uint32_t head_dim, std::uint64_t stride,
                  RopeDirection direction, std::size_t shift) {
    SCOPED_TRACE(testing::Message() << heads << " heads of " << head_dim << " in " << stride);
    constexpr std::uint32_t kSequence = 7;
    const std::vector<float> angles =
        rope_angles(std::vector<float>(head_dim / 2, 0.5F), kSequence);
    const Operand x = random(17 * stride + shift);
    compare([&](Ops& ops) {
      TestMemory y = copy(x.memory);
      ops.rope({.heads = {from(y, shift), stride},
                .tokens = 17,
                .head_count = heads,
                .head_dim = head_dim,
                .sequence = kSequence,
                .angles = {angles.data(), angles.size()},
                .direction = direction});
      Results results;
      results.push_back({"heads", std::move(y), dtype_});
      return results;
    });
  }

  void check_activation(const ActivationShape& s, bool in_place, std::size_t shift) {
    SCOPED_TRACE(testing::Message() << s.rows << " rows of " << s.columns << ", shift " << shift);
    const std::size_t count = s.rows * s.columns;
    const std::size_t inputs = s.kind == Activation::silu ? 2 * count : count;
    Operand x = random(inputs + shift, 4);
    const Operand dy = random(count + shift);
    compare([&](Ops& ops) {
      TestMemory y = elements(count + shift);
      TestMemory again = elements(count + shift);
      TestMemory dx = in_place ? copy(dy.memory) : elements(inputs + shift);
      ops.activation_forward(s, from(x.memory, shift), from(y, shift));
      ops.activation_backward(s, {.input = from(x.memory, shift),
                                  .out_gradient = from(in_place ? dx : dy.memory, shift),
                                  .input_gradient = from(dx, shift),
                                  .out = from(again, shift)});
      EXPECT_EQ(std::memcmp(y.data(), again.data(), y.size()), 0);
      Results results;
      results.push_back({"out", std::move(y), dtype_});
      results.push_back({"input gradient", std::move(dx), dtype_});
      return results;
    });
  }
};

TEST_P(CudaRows, LayerNormAgreesWithTheHost) {
  for (const std::uint64_t width : {1U, 7U, 8U, 40U, 129U, 768U, 1024U}) {
    check_norm({.kind = NormKind::layer, .tokens = 13, .width = width, .eps = 1e-5F}, true,
               Place::over_residual);
  }
  check_norm({.kind = NormKind::layer, .tokens = 1, .width = 1600}, true, Place::apart);
  check_norm({.kind = NormKind::layer, .tokens = 3, .width = 1601}, true, Place::over_out_gradient);
}

TEST_P(CudaRows, RmsNormAgreesWithTheHost) {
  for (const std::uint64_t width : {1U, 17U, 64U, 1032U, 2048U, 4100U}) {
    check_norm({.kind = NormKind::rms, .tokens = 5, .width = width, .eps = 1e-6F}, false,
               Place::over_out_gradient);
  }
}

TEST_P(CudaRows, NormAddsGradientsOfManyGroupsOfTokens) {
  check_norm({.kind = NormKind::rms, .tokens = 4099, .width = 24}, false, Place::apart);
  check_norm({.kind = NormKind::layer, .tokens = 1100, .width = 1032}, true, Place::apart);
}

TEST_P(CudaRows, NormSumsInTheWorkspaceWhereSharedMemoryIsTooSmall) {
  check_norm({.kind = NormKind::layer, .tokens = 3, .width = 6400}, true, Place::apart);
  check_norm({.kind = NormKind::rms, .tokens = 2, .width = 16384}, false, Place::over_residual);
}

TEST_P(CudaRows, NormTakesHeadsInsideWiderRows) {
  check_norm({.kind = NormKind::rms, .tokens = 9, .heads = 3, .width = 128}, false,
             Place::over_out_gradient, 256);
  check_norm({.kind = NormKind::rms, .tokens = 9, .heads = 2, .width = 24}, false, Place::apart,
             13);
}

TEST_P(CudaRows, NormTakesRowsThatNoPackStartsAt) {
  check_norm({.kind = NormKind::layer, .tokens = 6, .width = 64}, true, Place::apart, 0, 1);
}

TEST_P(CudaRows, BiasGradientAgreesWithTheHost) {
  check_bias_gradient(1, 1);
  check_bias_gradient(3, 8);
  check_bias_gradient(700, 33);
  check_bias_gradient(4500, 40);
  check_bias_gradient(1030, 4104);
}

TEST_P(CudaRows, RopeAgreesWithTheHost) {
  check_rope(5, 16, 80, RopeDirection::forward, 0);
  check_rope(3, 128, 640, RopeDirection::backward, 0);
  check_rope(4, 6, 29, RopeDirection::backward, 0);
  check_rope(1, 16, 16, RopeDirection::forward, 3);
}

TEST_P(CudaRows, ActivationsAgreeWithTheHost) {
  for (const Activation kind : {Activation::gelu_tanh, Activation::gelu_erf, Activation::silu}) {
    SCOPED_TRACE(static_cast<int>(kind));
    check_activation({.kind = kind, .rows = 9, .columns = 64}, false, 0);
    check_activation({.kind = kind, .rows = 5, .columns = 13}, kind != Activation::silu, 0);
    check_activation({.kind = kind, .rows = 1, .columns = 1}, false, 0);
    check_activation({.kind = kind, .rows = 3, .columns = 16}, false, 1);
  }
}

TEST_P(CudaRows, SumsAreRoundedToNearestEven) {
  for (const std::size_t shift : {0U, 1U}) {
    for (const std::size_t count : {1U, 8U, 29U}) {
      SCOPED_TRACE(testing::Message() << count << ", shift " << shift);
      std::vector<float> sums(count + shift);
      for (float& sum : sums) sum = random_.normal(1);
      const TestMemory input{std::span<const float>(sums)};
      const TestMemory out = elements(count);
      SerialRunner runner(Order::backward);
      const auto unrounded = input.device().as<const float>().subspan(shift, count);
      cuda::bodies::run(runner, dtype_, RoundSumsOp{unrounded, out.device()});
      const std::vector<float> expected =
          decode(encode(std::span(sums).subspan(shift), dtype_), dtype_);
      EXPECT_EQ(decode(out, dtype_), expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Serial, CudaRows, all_dtypes(), name_of_dtype);

}  // namespace
}  // namespace spillway::model::cuda_bodies_rows_test
