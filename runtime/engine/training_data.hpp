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

  /// Reads all validation tokens: what an evaluation would refuse at the end of training is refused
  /// before it. Throws `Error{invalid_argument}` if the vocabulary is larger than the model's or
  /// the validation tokens do not fill a window of `context`, `Error{corrupt_data}` naming a
  /// validation token that the vocabulary lacks.
  [[nodiscard]] static TrainingData open(const std::filesystem::path& directory,
                                         const model::ModelConfig& config, std::uint32_t context);

  /// XXH3 over the number of training tokens and the tokens themselves: all of up to 128 Mi tokens,
  /// of more 2,048 blocks of 64 Ki at equal distances, the first and the last among them.
  [[nodiscard]] std::uint64_t fingerprint(std::uint32_t vocab_size) const;
};

}  // namespace spillway::engine
