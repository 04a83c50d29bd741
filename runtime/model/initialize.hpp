// Random initial parameters: a pure function of seed, tensor and element, the same on every
// machine.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "runtime/base/random.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/model/parameter_layout.hpp"
#include "runtime/model/parameter_source.hpp"

namespace spillway::model {

/// Returns two independent standard normal numbers. It calls no C library, as `normal_pair` does,
/// whose last digits differ between machines: only IEEE operations that round correctly.
[[nodiscard]] std::array<double, 2> portable_normal_pair(const RandomBlock& block);

/// Initial values as in transformers: weights normal(0, init_std), residual projections of gpt2
/// divided by sqrt(2 * layers), biases 0, norms 1, the embedding of the padding token 0.
class RandomInitializer final : public ParameterSource {
 public:
  /// `layout` must outlive this.
  RandomInitializer(const ModelConfig& config, const ModelLayout& layout, std::uint64_t seed);

  void read(BlockIndex block, ElementCount first, std::span<float> target) const override;

 private:
  /// Writes elements of the whole tensor from `first` on.
  void fill(const ParameterTensor& tensor, std::uint64_t first, std::span<float> target) const;
  void clear_padding(const ParameterTensor& table, std::uint64_t first,
                     std::span<float> target) const;

  const ModelLayout* layout_;
  std::uint64_t seed_;
  double normal_std_;
  double scaled_std_;
  std::optional<std::uint32_t> padding_token_;
};

/// Writes one whole block of `RandomInitializer`: [padded_parameters] or, unpadded, [parameters].
void initialize(const ModelConfig& config, const ModelLayout& layout, BlockIndex block,
                std::uint64_t seed, std::span<float> target);

}  // namespace spillway::model
