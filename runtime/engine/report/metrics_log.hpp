// metrics.jsonl: one line a step, floats in shortest round-trip form, so that runs can be compared.
// A step's line is durable before the commit that makes the step true.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "runtime/base/file.hpp"
#include "runtime/engine/step/step_result.hpp"

namespace spillway::engine {

class MetricsLog {
 public:
  /// Opens `path` to go on with it. Cuts off lines of steps beyond `keep_up_to`. Drops a line that
  /// cannot be read, and keeps what follows it.
  MetricsLog(std::filesystem::path path, std::uint64_t keep_up_to);

  /// Number of lines that could not be read, other than a torn last one.
  [[nodiscard]] std::size_t damaged() const { return damaged_; }
  /// Whether the last line has no validation loss yet. In a log that goes on, it must also be the
  /// line of step `keep_up_to`.
  [[nodiscard]] bool can_amend() const { return can_amend_; }

  /// Whether every step that was appended has its line: the last write did not fail.
  [[nodiscard]] bool is_complete() const { return complete_; }

  /// Writes one line, in one write: a kill leaves whole lines.
  void append(const StepResult& result, const Exposed& exposed);
  /// Adds the validation loss to the last line, in one write.
  void amend(double val_loss);
  /// Makes the lines durable, if they are not.
  void synchronize();
  /// Throws `Error{io_error}` if the file was removed or replaced. Allocates nothing if all is
  /// well.
  void check_present() const;

 private:
  void write(std::span<const char> text, std::uint64_t at);

  std::filesystem::path path_;
  FileDescriptor file_;
  std::uint64_t end_ = 0;
  std::size_t damaged_ = 0;
  bool can_amend_ = false;
  bool complete_ = true;
  bool dirty_ = true;
};

}  // namespace spillway::engine
