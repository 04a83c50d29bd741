// The table of model shapes against the parameter counts that their publishers state.
#include "tools/bench/model_shapes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "runtime/base/error.hpp"
#include "runtime/model/cuda/cuda_ops.hpp"
#include "runtime/model/cuda/gemm/gemm_layout.hpp"
#include "runtime/model/parameter_layout.hpp"
#include "runtime/model/transformer.hpp"

namespace spillway::bench::model_shapes_test {
namespace {

TEST(ModelShapes, HaveTheParametersOfThePublishedModels) {
  // Elements of the published safetensors; "small" is counted by hand: 6 layers of 12 * 384^2 +
  // 13 * 384, 512 embedding rows of 384 and the last norm.
  const std::map<std::string_view, std::uint64_t> published = {
      {"small", 6 * (12 * 384 * 384 + 13 * 384) + 512 * 384 + 2 * 384},
      {"gpt2", 124'439'808},
      {"gpt2-xl", 1'557'611'200},
      {"llama-2-7b", 6'738'415'616},
      {"llama-2-13b", 13'015'864'320},
      {"llama-3-8b", 8'030'261'248},
      {"llama-3-70b", 70'553'706'496},
      {"mistral-7b", 7'241'732'096},
      {"qwen2.5-7b", 7'615'616'512},
      {"qwen2.5-14b", 14'770'033'664},
      {"qwen2.5-32b", 32'763'876'352},
      {"qwen3-8b", 8'190'735'360},
      {"qwen3-14b", 14'768'307'200},
      {"qwen3-32b", 32'762'123'264},
  };
  EXPECT_EQ(model_names().size(), published.size());
  for (const std::string_view name : model_names()) {
    ASSERT_TRUE(published.contains(name)) << name;
    EXPECT_EQ(model::make_layout(model_named(name)).parameters().value(), published.at(name))
        << name;
  }
}

TEST(ModelShapes, AnUnknownNameIsAnsweredWithTheKnownOnes) {
  try {
    (void)model_from("llama-9-8b");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("llama-9-8b"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("llama-3-8b"), std::string::npos);
  }
}

TEST(ModelShapes, AMistypedNameIsAnsweredWithTheOneThatWasMeant) {
  const auto refusal = [](const char* name) {
    try {
      (void)model_from(name);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  for (const char* name : {"llama3-8b", "Llama-3-8B", "lama-3-8b"}) {
    EXPECT_NE(refusal(name).find("did you mean llama-3-8b? All are small, "), std::string::npos)
        << refusal(name);
  }
  EXPECT_NE(refusal("8b").find("names like it are "), std::string::npos);
  EXPECT_EQ(refusal("8b").find("did you mean"), std::string::npos);
}

// 16 bytes of 16-bit elements: cuBLASLt has slower algorithms alone for matrices whose rows begin
// elsewhere. The last chunk of logits of 7,000 tokens is a short one.
TEST(ModelShapes, GiveNoProductRowsThatBeginBetweenMultiplesOf16Bytes) {
  for (const std::string_view name : model_names()) {
    const model::ModelConfig config = model_named(name);
    const auto ops = model::cuda::make_sizing_ops({.compute = DType::bf16});
    const std::uint32_t sequence = std::min(1000U, config.max_context);
    const model::Transformer model(config, {.batch = 7, .sequence = sequence}, DType::bf16, *ops);
    for (const model::GemmShape& shape : ops->gemms()) {
      const model::cuda::ColumnMajorGemm gemm = model::cuda::column_major(shape);
      for (const auto& matrix : {gemm.left, gemm.right, gemm.result}) {
        EXPECT_EQ(matrix.leading % 8, 0U) << name << ": [" << shape.rows << ", " << shape.inner
                                          << "] x [" << shape.inner << ", " << shape.columns << "]";
      }
    }
  }
}

}  // namespace
}  // namespace spillway::bench::model_shapes_test
