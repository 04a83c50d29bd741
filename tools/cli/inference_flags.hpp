// The flags of commands that run a trained model, and what they make of them.
#pragma once

#include <cstdint>

#include "runtime/engine/inference.hpp"
#include "tools/cli/option_flags.hpp"
#include "tools/cli/run_source.hpp"

namespace spillway::cli {

struct InferenceFlags {
  SourceFlags source;
  OptionFlags machine;

  /// Returns what the flags and the model say, for `batch` windows of `context` tokens at once.
  [[nodiscard]] engine::InferenceOptions options(ModelSource& from, engine::InferenceUse use,
                                                 std::uint32_t batch, std::uint32_t context) const;
};

}  // namespace spillway::cli
