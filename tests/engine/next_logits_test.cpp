// Logits of a position, read from a device whose rows of them lie apart: tiny_gpt2 has 67 words.
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/engine/inference.hpp"
#include "tests/engine/device_under_test.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine::next_logits_test {
namespace {

TEST(NextLogits, AreThoseOfTheHostAtEveryPosition) {
  const model::ModelConfig config = tiny_gpt2(2);
  const model::ModelLayout layout = model::make_layout(config);
  const model::RandomInitializer source(config, layout, 3);
  const auto load = [&](config::DeviceKind device) {
    return Inference(config,
                     {.use = InferenceUse::generation,
                      .compute = DType::fp32,
                      .context = 16,
                      .device = device,
                      .device_memory = 256_MiB,
                      .host_memory = 256_MiB},
                     source);
  };
  Inference host = load(config::DeviceKind::host);
  Inference device = load(device_under_test());
  const std::vector<std::int32_t> tokens{5, 66, 0, 17, 40, 3, 66, 21};
  for (const std::size_t count : {1U, 2U, 8U}) {
    const std::span<const std::int32_t> first(tokens.data(), count);
    const std::span<const float> expected = host.next_logits(first);
    const std::vector<float> copy(expected.begin(), expected.end());
    const std::span<const float> found = device.next_logits(first);
    ASSERT_EQ(found.size(), config.vocab_size);
    // fp32 sums of 40 products in another order, of numbers below 1.
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], copy[i], 1e-5) << i;
  }
}

}  // namespace
}  // namespace spillway::engine::next_logits_test
