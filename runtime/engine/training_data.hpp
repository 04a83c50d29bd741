// TrainingData: the token files of a run, opened and checked against the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "runtime/data/meta.hpp"
#include "runtime/data/token_file.hpp"
#include "runtime/model/model_config.hpp"

namespace spillway::engine {

struct TrainingData {
  data::Meta meta;
  data::TokenFile train;
  std::optional<data::TokenFile> validation;  ///< absent without a val.bin

  /// Throws `Error{invalid_argument}` if the vocabulary is larger than the model's.
  [[nodiscard]] static TrainingData open(const std::filesystem::path& directory,
                                         const model::ModelConfig& config);

  /// XXH3 over the length and the first and last tokens: tells data sets apart, reads 512 KiB.
  [[nodiscard]] std::uint64_t fingerprint(std::uint32_t vocab_size) const;
};

}  // namespace spillway::engine
