// metrics.jsonl: one line a step, floats in shortest round-trip form, so that runs can be compared.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "runtime/base/file.hpp"
#include "runtime/engine/trainer.hpp"

namespace spillway::engine {

class MetricsLog {
 public:
  /// Appends to `path`; lines of steps beyond `keep_up_to` (and a torn last line) are cut off.
  MetricsLog(const std::filesystem::path& path, std::uint64_t keep_up_to);

  /// One line, in one write: a kill leaves whole lines.
  void append(const StepResult& result, const Exposed& exposed, std::optional<double> val_loss);

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
};

}  // namespace spillway::engine
