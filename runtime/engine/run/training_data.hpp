// TrainingData: the token files of a run, opened and checked against the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "runtime/data/meta.hpp"
#include "runtime/data/token_file.hpp"
#include "runtime/model/model_config.hpp"

namespace spillway::engine {

/// What the training tokens are recognised by.
struct DataIdentity {
  /// XXH3 over the number of training tokens and every one of them, in blocks of 64 Ki.
  std::uint64_t fingerprint = 0;
  /// Stamp of the file when the tokens were read. It is absent where the file had changed so short
  /// a time before that another change could have the same time.
  std::optional<data::FileStamp> stamp{};
};

struct TrainingData {
  data::Meta meta;
  data::TokenFile train;
  std::optional<data::TokenFile> validation;  ///< absent without a val.bin
  std::uint64_t validation_fingerprint = 0;   ///< of its tokens, computed as for training

  /// Reads all validation tokens: what an evaluation would refuse at the end of training is refused
  /// before it. Throws `Error{invalid_argument}` if the vocabulary is larger than the model's or
  /// the validation tokens do not fill a window of `context`, `Error{corrupt_data}` naming a
  /// validation token that the vocabulary lacks.
  [[nodiscard]] static TrainingData open(const std::filesystem::path& directory,
                                         const model::ModelConfig& config, std::uint32_t context);

  /// Reads every training token, unless they are in the file that `known` was made of, untouched
  /// since. Throws `Error{corrupt_data}` naming a token that the vocabulary lacks.
  [[nodiscard]] DataIdentity identity(std::uint32_t vocab_size,
                                      const DataIdentity& known = {}) const;
};

}  // namespace spillway::engine
