// DeepSpeed's monitors of a run: scalars by the windows trained on, as TensorBoard events and as
// CSV files, under DeepSpeed's names. Control thread only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/file.hpp"
#include "runtime/engine/report/event_file.hpp"
#include "runtime/engine/training/trainer.hpp"

namespace spillway::engine {

class Monitors {
 public:
  /// Opens what `options` enable; files lie below `run` where the configuration names no directory.
  /// A step has the windows of all `ranks`. What the files have from beyond step `keep_up_to` is
  /// cut off (CSV) or hidden (TensorBoard). Monitors are for eyes only: an error of a write goes to
  /// `note` and ends them, not the run.
  Monitors(const config::TrainOptions& options, std::uint32_t ranks,
           const std::filesystem::path& run, std::uint64_t keep_up_to,
           std::function<void(const std::string&)> note);

  void append(const StepResult& result);
  void append(std::uint64_t step, const Evaluation& evaluation);

 private:
  void write(std::string_view name, double value, std::uint64_t windows);
  void write_all(std::string_view name, double value, std::uint64_t windows);
  FileDescriptor& csv_file(std::string_view name);

  std::function<void(const std::string&)> note_;
  std::uint64_t windows_a_step_;
  std::uint64_t kept_windows_;
  bool scaled_;
  std::optional<detail::EventFile> events_;
  std::optional<std::filesystem::path> csv_directory_;
  std::map<std::string, FileDescriptor, std::less<>> csv_files_;
};

}  // namespace spillway::engine
