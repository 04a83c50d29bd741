// What of the CUDA matrix products needs no GPU: how they are put to a column-major library, the
// table of algorithms that a run records, and the choice among timings.
#include "runtime/base/error.hpp"
#include "runtime/model/cuda/gemm/gemm_choices.hpp"
#include "runtime/model/cuda/gemm/gemm_layout.hpp"
#include "runtime/model/host/host_ops.hpp"
#include "tests/model/ops_support.hpp"

namespace spillway::model::cuda_gemm_test {
namespace {

using cuda::ColumnMajor;
using cuda::ColumnMajorGemm;
using cuda::GemmAlgorithm;
using cuda::GemmChoices;
using cuda::GemmKey;

/// The product that a column-major library computes from a description, by its definition.
std::vector<float> library_product(const ColumnMajorGemm& p, const std::vector<float>& left,
                                   const std::vector<float>& right, float beta,
                                   const std::vector<float>& added,
                                   const std::vector<float>& bias) {
  const auto at = [](const std::vector<float>& values, const ColumnMajor& m, bool transposed,
                     std::uint64_t i, std::uint64_t j) {
    if (transposed) std::swap(i, j);
    EXPECT_LT(i, m.rows);
    EXPECT_LT(j, m.columns);
    EXPECT_GE(m.leading, m.rows);
    return values.at(i + j * m.leading);
  };
  EXPECT_EQ(p.result.rows, p.m);
  EXPECT_EQ(p.result.columns, p.n);
  std::vector<float> result(p.result.columns * p.result.leading);
  for (std::uint64_t i = 0; i < p.m; ++i) {
    for (std::uint64_t j = 0; j < p.n; ++j) {
      float sum = 0;
      for (std::uint64_t k = 0; k < p.k; ++k) {
        sum +=
            at(left, p.left, p.transpose_left, i, k) * at(right, p.right, p.transpose_right, k, j);
      }
      const std::size_t place = i + j * p.result.leading;
      result[place] = sum + (beta != 0 ? beta * added.at(place) : 0) + (p.bias ? bias.at(i) : 0);
    }
  }
  return result;
}

class CudaGemmLayout : public testing::Test {
 protected:
  std::vector<float> values(std::size_t count) {
    std::vector<float> result(count);
    for (float& value : result) value = random_.normal(1);
    return result;
  }

  void check(const GemmShape& shape, bool first) {
    const auto stored = [&](std::uint64_t rows, std::uint64_t columns, std::uint64_t stride) {
      return values(rows * (stride > 0 ? stride : columns));
    };
    const auto a = shape.transpose_a ? stored(shape.inner, shape.rows, shape.a_stride)
                                     : stored(shape.rows, shape.inner, shape.a_stride);
    const auto b = shape.transpose_b ? stored(shape.columns, shape.inner, shape.b_stride)
                                     : stored(shape.inner, shape.columns, shape.b_stride);
    const auto bias = values(shape.columns);
    const auto residual = stored(shape.rows, shape.columns, shape.out_stride);
    const auto held = stored(shape.rows, shape.columns, shape.out_stride);
    const auto ops = host::make_ops({.compute_threads = 1});
    const GemmPlan plan = ops->plan_gemm(shape);
    const TestMemory space(plan.workspace.value());
    const auto memory = [](const std::vector<float>& v) {
      return TestMemory(std::span<const float>(v));
    };
    const TestMemory a_memory = memory(a), b_memory = memory(b), bias_memory = memory(bias);
    const TestMemory residual_memory = memory(residual), out = memory(held);
    ops->gemm(plan, {.a = a_memory.device(),
                     .b = b_memory.device(),
                     .bias = shape.bias ? bias_memory.device() : Tensor{},
                     .residual = shape.residual ? residual_memory.device() : Tensor{},
                     .out = out.device(),
                     .first = first,
                     .workspace = space.device()});
    const std::vector<float> actual =
        library_product(cuda::column_major(shape), b, a, cuda::beta(shape, first),
                        shape.residual ? residual : held, bias);
    const std::vector<float> expected = decode(out, DType::fp32);
    ASSERT_EQ(actual.size(), expected.size());
    const std::size_t stride = shape.out_stride > 0 ? shape.out_stride : shape.columns;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      if (i % stride >= shape.columns) continue;  // another matrix's columns
      // Sums of a dozen products of order 1 in fp32, in two orders.
      ASSERT_NEAR(actual[i], expected[i], 1e-5) << i << ", seed " << Random::seed();
    }
  }

  Random random_;
};

TEST_F(CudaGemmLayout, IsTheRowMajorProductForEveryTransposition) {
  for (const bool a : {false, true}) {
    for (const bool b : {false, true}) {
      for (const auto output : {GemmOutput::compute, GemmOutput::fp32, GemmOutput::gradient}) {
        for (const bool first : {false, true}) {
          check({.rows = 5,
                 .columns = 7,
                 .inner = 11,
                 .transpose_a = a,
                 .transpose_b = b,
                 .output = output},
                first);
        }
      }
    }
  }
}

TEST_F(CudaGemmLayout, AddsBiasAndResidual) {
  for (const bool b : {false, true}) {
    for (const bool bias : {false, true}) {
      for (const bool residual : {false, true}) {
        check({.rows = 4,
               .columns = 6,
               .inner = 3,
               .transpose_b = b,
               .bias = bias,
               .residual = residual},
              true);
      }
    }
  }
}

TEST_F(CudaGemmLayout, WorksOnColumnsOfWiderMatrices) {
  for (const bool a : {false, true}) {
    for (const bool b : {false, true}) {
      check({.rows = 5,
             .columns = 7,
             .inner = 11,
             .transpose_a = a,
             .transpose_b = b,
             .residual = true,
             .a_stride = 13,
             .b_stride = 17,
             .out_stride = 19},
            true);
    }
  }
}

TEST_F(CudaGemmLayout, HandlesSizesOfOne) {
  check({.rows = 1, .columns = 1, .inner = 1}, true);
  check({.rows = 1, .columns = 9, .inner = 2, .transpose_a = true, .bias = true}, true);
  check({.rows = 9, .columns = 1, .inner = 2, .transpose_b = true, .residual = true}, true);
}

TEST_F(CudaGemmLayout, KeepsFp32ForLogitsAndGradients) {
  EXPECT_FALSE(cuda::column_major({.rows = 2, .columns = 2, .inner = 2}).fp32_result);
  for (const auto output : {GemmOutput::fp32, GemmOutput::gradient}) {
    EXPECT_TRUE(
        cuda::column_major({.rows = 2, .columns = 2, .inner = 2, .output = output}).fp32_result);
  }
}

GemmAlgorithm algorithm(std::uint64_t seed) {
  GemmAlgorithm words{};
  for (std::uint64_t& word : words) word = seed = seed * 6364136223846793005ULL + 1;
  words[3] = 7;  // leading zeros are digits too
  return words;
}

TEST(GemmChoices, ComeBackFromJson) {
  GemmChoices choices;
  choices.set("one", algorithm(1));
  choices.set("two \"quoted\"", algorithm(2));
  const GemmChoices again = GemmChoices::from_json(choices.to_json());
  EXPECT_EQ(again, choices);
  EXPECT_EQ(again.find("one"), algorithm(1));
  EXPECT_EQ(again.find("three"), std::nullopt);
  EXPECT_EQ(GemmChoices::from_json(GemmChoices().to_json()).size(), 0U);
}

TEST(GemmChoices, RefuseAMalformedTable) {
  const std::string digits(128, 'f');
  const auto table = [](const std::string& value) {
    return R"({"format": 1, "algorithms": {"key": )" + value + "}}";
  };
  EXPECT_EQ(GemmChoices::from_json(table('"' + digits + '"')).size(), 1U);
  for (const std::string& bad :
       {std::string("[]"), std::string("{"), std::string(R"({"algorithms": {}})"),
        std::string(R"({"format": 2, "algorithms": {}})"), std::string(R"({"format": 1})"),
        std::string(R"({"format": 1, "algorithms": []})"), table("7"), table("\"\""),
        table('"' + digits.substr(1) + '"'), table('"' + digits + "0\""),
        table("\"-" + digits.substr(1) + '"'), table("\"g" + digits.substr(1) + '"'),
        table("\"0x" + digits.substr(2) + '"')}) {
    try {
      (void)GemmChoices::from_json(bad);
      ADD_FAILURE() << "accepted " << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), testing::HasSubstr("table of matrix product algorithms"));
    }
  }
}

TEST(GemmChoices, TakeAnothersAndCountWhatIsCommon) {
  GemmChoices choices;
  choices.set("one", algorithm(1));
  choices.set("two", algorithm(2));
  GemmChoices others;
  others.set("two", algorithm(3));
  others.set("three", algorithm(4));
  EXPECT_EQ(choices.common(others), 0U);
  choices.take(others);
  EXPECT_EQ(choices.find("one"), algorithm(1));
  EXPECT_EQ(choices.find("two"), algorithm(3));
  EXPECT_EQ(choices.size(), 3U);
  EXPECT_EQ(choices.common(others), 2U);
  EXPECT_EQ(GemmChoices().common(others), 0U);
}

TEST(BestGemm, IsTheFastestButNoneThatGainsLessThanNoise) {
  const auto best = [](std::initializer_list<double> milliseconds) {
    std::vector<cuda::GemmTiming> timings;
    for (const double time : milliseconds) timings.push_back({{}, time});
    return cuda::best_of(timings);
  };
  EXPECT_EQ(best({3}), 0U);
  EXPECT_EQ(best({3, 2, 1, 2}), 2U);
  EXPECT_EQ(best({3, 1, 1}), 1U);  // the library's order
  EXPECT_EQ(best({1, 0.99}), 0U);
  EXPECT_EQ(best({1, 0.97}), 1U);
  EXPECT_EQ(best({1, 1.5, 0.985, 0.981}), 0U);
}

TEST(GemmKey, DiffersWhereTheAlgorithmMay) {
  const GemmKey base{
      .device = "GPU", .library = 130100, .shape = {.rows = 2, .columns = 3, .inner = 4}};
  EXPECT_EQ(base.text(), "GPU/130100/bf16/2x3x4/nn/plain/compute/aligned");
  EXPECT_EQ(cuda::name_of({.rows = 2,
                           .columns = 3,
                           .inner = 4,
                           .transpose_b = true,
                           .bias = true,
                           .residual = true,
                           .out_stride = 8}),
            "2x3x4/nt/bias+residual/compute/rows of 0,0,8");
  std::vector<GemmKey> others(13, base);
  others[0].device = "other";
  others[1].library = 130200;
  others[2].compute = DType::fp16;
  others[3].tf32 = true;
  others[4].aligned = false;
  others[5].shape.rows = 5;
  others[6].shape.columns = 5;
  others[7].shape.inner = 5;
  others[8].shape.transpose_a = true;
  others[9].shape.transpose_b = true;
  others[10].shape.bias = true;
  others[11].shape.residual = true;
  others[12].shape.output = GemmOutput::gradient;
  others.push_back(base);
  others.back().deterministic = false;
  for (std::uint64_t GemmShape::*const stride :
       {&GemmShape::a_stride, &GemmShape::b_stride, &GemmShape::out_stride}) {
    others.push_back(base);
    others.back().shape.*stride = 8;
  }
  GemmChoices choices;
  choices.set(base.text(), {});
  for (const GemmKey& key : others) choices.set(key.text(), {});
  EXPECT_EQ(choices.size(), others.size() + 1);
}

}  // namespace
}  // namespace spillway::model::cuda_gemm_test
