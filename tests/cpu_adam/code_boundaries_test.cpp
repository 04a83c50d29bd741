// Moments next to the boundary between two codes of format int8: every kernel has the code that the
// plain codec gives the number itself. Kernels find their codes in other ways.
#include "cpu_adam/codec.hpp"
#include "tests/cpu_adam/update_case.hpp"

namespace spillway::cpu_adam::test::code_boundaries_test {
namespace {

/// Adds the numbers up to two places from where `code` changes between the bits `low` and `high`.
template <class Code>
void add_boundaries(const Code& code, std::uint32_t low, std::uint32_t high,
                    std::vector<float>& values) {
  if (code(std::bit_cast<float>(low)) == code(std::bit_cast<float>(high))) return;
  if (high - low > 1) {
    const std::uint32_t middle = low + (high - low) / 2;
    add_boundaries(code, low, middle, values);
    add_boundaries(code, middle, high, values);
    return;
  }
  for (const std::uint32_t bits : {low - 1, low, high, high + 1}) {
    values.push_back(std::bit_cast<float>(bits));
  }
}

/// The boundaries of a code of [0, 1]; it ascends or descends all the way.
template <class Code>
std::vector<float> boundaries(const Code& code) {
  std::vector<float> values;
  add_boundaries(code, std::bit_cast<std::uint32_t>(1e-12F), std::bit_cast<std::uint32_t>(1.0F),
                 values);
  return values;
}

/// Quantization blocks of these values, each behind a 1, which makes its scale 1.
std::vector<float> in_blocks(const std::vector<float>& values) {
  std::vector<float> result;
  for (const float value : values) {
    if (result.size() % kQuantizationBlock == 0) result.push_back(1);
    result.push_back(value);
  }
  result.resize((result.size() + 255) / kQuantizationBlock * kQuantizationBlock);
  return result;
}

/// The codes of a moment after one update from nothing, with these gradients.
std::vector<std::byte> codes_of(Isa isa, Optimizer optimizer, const std::vector<float>& gradient) {
  const Kernel& kernel = find_kernel(isa, DType::fp32, DType::bf16, StateFormat::int8);
  const StateLayout layout = make_layout(StateFormat::int8, gradient.size());
  std::vector<std::byte> state(layout.bytes), parameters(2 * gradient.size());
  kernel.update(make_scalars({.lr = 0, .beta1 = 0, .optimizer = optimizer}, 1, 1),
                tile_range(layout, state.data(), state.data(), gradient.data(), parameters.data(),
                           parameters.data()));
  const std::byte* const codes = state.data() + (uses_m(optimizer) ? layout.m : layout.v);
  return {codes, codes + gradient.size()};
}

TEST(CodeBoundaries, OfFirstMomentsAreThoseOfTheCodecInEveryKernel) {
  std::vector<float> values =
      boundaries([](float x) { return encode_signed(x, 1); });  // zero to 1: 128 boundaries
  ASSERT_EQ(values.size(), 4U * 128);
  for (std::size_t i = 0, count = values.size(); i < count; ++i) values.push_back(-values[i]);
  const std::vector<float> gradient = in_blocks(values);
  for (const Isa isa : runnable_isas()) {
    const std::vector<std::byte> codes = codes_of(isa, Optimizer::sgd, gradient);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      ASSERT_EQ(static_cast<std::int8_t>(codes[i]), encode_signed(gradient[i], 1))
          << name_of(isa) << std::hexfloat << " of " << gradient[i];
    }
  }
}

TEST(CodeBoundaries, OfSecondMomentsAreThoseOfTheCodecInEveryKernel) {
  const std::vector<float> values = boundaries([](float x) { return encode_unsigned(x, 1); });
  ASSERT_EQ(values.size(), 4U * 254);  // nothing is coded as zero
  std::vector<float> roots;
  for (const float value : values) roots.push_back(std::sqrt(value));
  const std::vector<float> gradient = in_blocks(roots);
  for (const Isa isa : runnable_isas()) {
    const std::vector<std::byte> codes = codes_of(isa, Optimizer::adagrad, gradient);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      ASSERT_EQ(static_cast<std::uint8_t>(codes[i]), encode_unsigned(gradient[i] * gradient[i], 1))
          << name_of(isa) << std::hexfloat << " of " << gradient[i];
    }
  }
}

}  // namespace
}  // namespace spillway::cpu_adam::test::code_boundaries_test
