#include "runtime/model/initialize.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numbers>
#include <utility>

#include "runtime/base/error.hpp"

namespace spillway::model {
namespace {

/// Keeps these numbers apart from other uses of the same seed (the order of the data).
constexpr std::uint64_t kStream = 0x696e6974ULL << 32;

/// Returns c[0] + x (c[1] + x (c[2] + ...)).
template <std::size_t Count>
double polynomial(const std::array<double, Count>& coefficients, double x) {
  double sum = coefficients[Count - 1];
  for (std::size_t i = Count - 1; i > 0; --i) sum = sum * x + coefficients[i - 1];
  return sum;
}

/// Returns ln x for a normal x in (0, 1]: x = 2^e m with m in [sqrt(1/2), sqrt(2)), and ln m = 2
/// artanh(s) with s = (m - 1) / (m + 1), |s| < 0.172. The first term left out is below 2e-18 of the
/// sum.
double natural_logarithm(double x) {
  static constexpr std::array<double, 12> kArtanh{1.0,      1.0 / 3,  1.0 / 5,  1.0 / 7,
                                                  1.0 / 9,  1.0 / 11, 1.0 / 13, 1.0 / 15,
                                                  1.0 / 17, 1.0 / 19, 1.0 / 21, 1.0 / 23};
  const auto bits = std::bit_cast<std::uint64_t>(x);
  auto exponent = static_cast<int>(bits >> 52) - 1023;
  double mantissa = std::bit_cast<double>((bits & 0xfffffffffffffULL) | 0x3ff0000000000000ULL);
  if (mantissa > std::numbers::sqrt2) {
    mantissa *= 0.5;
    ++exponent;
  }
  const double s = (mantissa - 1) / (mantissa + 1);
  return exponent * std::numbers::ln2 + 2 * s * polynomial(kArtanh, s * s);
}

struct SineCosine {
  double sine;
  double cosine;
};

/// Returns those of 2 pi u for u in [0, 1). The octant is taken out of u exactly; what is left is
/// at most pi / 4, where the terms left out are below 1e-17.
SineCosine sine_cosine_of_turn(double u) {
  static constexpr std::array<double, 9> kSine{1.0,
                                               -1.0 / 6,
                                               1.0 / 120,
                                               -1.0 / 5040,
                                               1.0 / 362880,
                                               -1.0 / 39916800,
                                               1.0 / 6227020800,
                                               -1.0 / 1307674368000,
                                               1.0 / 355687428096000};
  static constexpr std::array<double, 9> kCosine{1.0,
                                                 -1.0 / 2,
                                                 1.0 / 24,
                                                 -1.0 / 720,
                                                 1.0 / 40320,
                                                 -1.0 / 3628800,
                                                 1.0 / 479001600,
                                                 -1.0 / 87178291200,
                                                 1.0 / 20922789888000};
  const double quarters = 4 * u;
  const int quadrant = static_cast<int>(quarters);
  const double rest = quarters - quadrant;
  const bool mirrored = rest > 0.5;
  const double angle = (mirrored ? 1 - rest : rest) * (std::numbers::pi / 2);
  double sine = angle * polynomial(kSine, angle * angle);
  double cosine = polynomial(kCosine, angle * angle);
  if (mirrored) std::swap(sine, cosine);
  switch (quadrant) {
    case 0: return {sine, cosine};
    case 1: return {cosine, -sine};
    case 2: return {-sine, -cosine};
    default: return {-cosine, sine};
  }
}

}  // namespace

std::array<double, 2> portable_normal_pair(const RandomBlock& block) {
  const auto [first, second] = as_u64(block);
  // 1 - u lies in [2^-53, 1], where the logarithm is finite: the largest radius is 8.57.
  const double radius = std::sqrt(-2 * natural_logarithm(1 - uniform_from(first)));
  const auto [sine, cosine] = sine_cosine_of_turn(uniform_from(second));
  return {radius * cosine, radius * sine};
}

RandomInitializer::RandomInitializer(const ModelConfig& config, const ModelLayout& layout,
                                     std::uint64_t seed)
    : layout_(&layout),
      seed_(seed),
      normal_std_(config.init_std),
      scaled_std_(config.init_std / std::sqrt(2.0 * config.layers)),
      padding_token_(config.padding_token) {}

void RandomInitializer::read(BlockIndex block, ElementCount first, std::span<float> target) const {
  const BlockLayout& layout = layout_->blocks.at(block.value());
  std::uint64_t position = first.value();
  SPILLWAY_ASSERT(position + target.size() <= layout.padded_parameters.value());
  for (const ParameterTensor& tensor : layout.tensors) {
    if (target.empty()) break;
    const std::uint64_t end = (tensor.first + tensor.count).value();
    if (position >= end) continue;
    const auto part = target.first(std::min<std::uint64_t>(target.size(), end - position));
    const std::uint64_t element = (ElementCount{position} - tensor.first + tensor.skipped).value();
    fill(tensor, element, part);
    if (tensor.name.ends_with("embed_tokens.weight")) clear_padding(tensor, element, part);
    target = target.subspan(part.size());
    position += part.size();
  }
  std::ranges::fill(target, 0.0F);  // padding
}

void RandomInitializer::fill(const ParameterTensor& tensor, std::uint64_t first,
                             std::span<float> target) const {
  if (tensor.initial == Initial::zeros || tensor.initial == Initial::ones) {
    std::ranges::fill(target, tensor.initial == Initial::ones ? 1.0F : 0.0F);
    return;
  }
  const double std = tensor.initial == Initial::scaled_normal ? scaled_std_ : normal_std_;
  // Elements 2k and 2k + 1 of a tensor are the two numbers of its block k.
  std::array<double, 2> pair{};
  for (std::size_t i = 0; i < target.size(); ++i) {
    const std::uint64_t element = first + i;
    if (i == 0 || element % 2 == 0) {
      pair = portable_normal_pair(
          random_block(seed_, {.stream = kStream + tensor.number, .index = element / 2}));
    }
    target[i] = static_cast<float>(std * pair[element % 2]);
  }
}

/// Clears what of the padding token's row is among the elements.
void RandomInitializer::clear_padding(const ParameterTensor& table, std::uint64_t first,
                                      std::span<float> target) const {
  if (!padding_token_) return;
  const std::uint64_t row = *padding_token_ * table.shape.back();
  const std::uint64_t begin = std::max(first, row);
  const std::uint64_t end = std::min(first + target.size(), row + table.shape.back());
  if (begin < end) std::ranges::fill(target.subspan(begin - first, end - begin), 0.0F);
}

void initialize(const ModelConfig& config, const ModelLayout& layout, BlockIndex block,
                std::uint64_t seed, std::span<float> target) {
  RandomInitializer(config, layout, seed).read(block, ElementCount{0}, target);
}

}  // namespace spillway::model
