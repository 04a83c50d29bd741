// What a benchmark trains with: a directory that disappears, tokens and parameters that mean
// nothing. Both are pure functions of the seed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "runtime/model/model_config.hpp"
#include "runtime/model/parameter_layout.hpp"
#include "runtime/model/parameter_source.hpp"

namespace spillway::bench {

/// A new directory in `parent`, removed with its contents at the end.
class ScratchDirectory {
 public:
  /// Throws `Error{io_error}` naming the directory that cannot be made.
  explicit ScratchDirectory(const std::filesystem::path& parent);
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Fills `tokens` with ids that are uniform over the vocabulary.
void fill_random_tokens(std::span<std::int32_t> tokens, std::uint32_t vocabulary,
                        std::uint64_t seed);
/// Writes `count` such tokens as DIRECTORY/train.bin, with its meta.json: a data set for training.
void write_random_tokens(const std::filesystem::path& directory, std::uint32_t vocabulary,
                         std::uint64_t count, std::uint64_t seed);

/// Gives initial parameters as random as a benchmark needs and as fast as memory: weights are cut
/// from one table of normal numbers, at a place that depends on the tensor. Billions of them would
/// take `model::RandomInitializer` minutes.
class NoiseParameters final : public model::ParameterSource {
 public:
  explicit NoiseParameters(const model::ModelConfig& config);

  void read(BlockIndex block, ElementCount first, std::span<float> target) const override;

 private:
  model::ModelLayout layout_;
  std::vector<float> noise_;
};

}  // namespace spillway::bench
