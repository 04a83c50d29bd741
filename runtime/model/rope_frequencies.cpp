#include "runtime/model/rope_frequencies.hpp"

#include <cmath>
#include <numbers>

namespace spillway::model {
namespace {

/// Long wavelengths are slowed by `factor`, short ones kept, those between interpolated.
double scale_llama3(double frequency, const Llama3RopeScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double longest_kept = scaling.original_context / scaling.high_frequency_factor;
  const double shortest_slowed = scaling.original_context / scaling.low_frequency_factor;
  if (wavelength < longest_kept) return frequency;
  if (wavelength > shortest_slowed) return frequency / scaling.factor;
  const double smooth = (scaling.original_context / wavelength - scaling.low_frequency_factor) /
                        (scaling.high_frequency_factor - scaling.low_frequency_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

}  // namespace

std::vector<float> rope_inverse_frequencies(const ModelConfig& config) {
  std::vector<float> result;
  for (std::uint32_t i = 0; i < config.head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(config.head_dim);
    const auto power =
        static_cast<float>(std::pow(config.rope_theta, static_cast<double>(exponent)));
    double frequency = static_cast<double>(1.0F / power);
    if (config.rope_linear_factor) frequency /= *config.rope_linear_factor;
    if (config.rope_llama3) frequency = scale_llama3(frequency, *config.rope_llama3);
    result.push_back(static_cast<float>(frequency));
  }
  return result;
}

std::vector<float> rope_angles(std::span<const float> frequencies, std::uint32_t sequence) {
  std::vector<float> angles;
  angles.reserve(2 * frequencies.size() * sequence);
  for (std::uint32_t position = 0; position < sequence; ++position) {
    // The angle rounds to fp32, as in the models that were trained with it.
    const auto angle = [&](float frequency) {
      return static_cast<double>(static_cast<float>(position) * frequency);
    };
    for (const float f : frequencies) angles.push_back(static_cast<float>(std::cos(angle(f))));
    for (const float f : frequencies) angles.push_back(static_cast<float>(std::sin(angle(f))));
  }
  return angles;
}

}  // namespace spillway::model
