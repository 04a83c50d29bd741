// The flags of commands that run a trained model, and what they make of them.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>

#include "runtime/engine/inference.hpp"
#include "tools/cli/device_flag.hpp"
#include "tools/cli/run_source.hpp"

namespace spillway::cli {

struct InferenceFlags {
  SourceFlags source;
  std::optional<engine::DeviceKind> device;
  MemoryFlags memory;
  std::uint32_t compute_threads = 0;

  /// All of them but those of the source.
  void add_machine_to(CLI::App& command);
  /// What the flags and the model say, for `batch` windows of `context` tokens at once.
  [[nodiscard]] engine::InferenceOptions options(ModelSource& from, std::uint32_t batch,
                                                 std::uint32_t context) const;
};

}  // namespace spillway::cli
