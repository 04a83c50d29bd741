#include "runtime/engine/report/monitors.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <utility>

#include "runtime/base/error.hpp"

namespace spillway::engine {
namespace {

std::filesystem::path directory_of(const config::MonitorOptions& options,
                                   const std::filesystem::path& otherwise) {
  return (options.output_path.empty() ? otherwise : options.output_path) / options.job_name;
}

/// Bytes of the head and of the whole rows up to `last`.
std::uint64_t kept_bytes(const std::filesystem::path& path, std::uint64_t last) {
  std::ifstream file(path, std::ios::binary);
  std::uint64_t kept = 0;
  std::string line;
  while (std::getline(file, line) && !file.eof()) {
    std::uint64_t windows = 0;
    const auto [end, status] = std::from_chars(line.data(), line.data() + line.size(), windows);
    const bool row = status == std::errc{} && *end == ',';
    if (kept > 0 && (!row || windows > last)) break;
    kept += line.size() + 1;
  }
  return kept;
}

void write_whole(const FileDescriptor& file, const std::string& text, std::string_view name) {
  const ssize_t written = ::write(file.get(), text.data(), text.size());
  if (written < 0) throw_errno(errno, fmt::format("write {}.csv", name));
  check(static_cast<std::size_t>(written) == text.size(), ErrorCode::io_error,
        fmt::format("{}.csv: only {} of {} bytes were written; the disk is full", name, written,
                    text.size()));
}

}  // namespace

Monitors::Monitors(const config::TrainOptions& options, std::uint32_t ranks,
                   const std::filesystem::path& run, std::uint64_t keep_up_to,
                   std::function<void(const std::string&)> note)
    : note_(std::move(note)),
      windows_a_step_(config::windows_of_step(options) * ranks),
      kept_windows_(keep_up_to * windows_a_step_),
      scaled_(options.compute == DType::fp16) {
  if (options.tensorboard.enabled) {
    events_.emplace(directory_of(options.tensorboard, run / "tensorboard"), kept_windows_ + 1);
  }
  if (options.csv_monitor.enabled) {
    csv_directory_ = directory_of(options.csv_monitor, run / "csv_monitor");
    std::filesystem::create_directories(*csv_directory_);
  }
}

void Monitors::append(const StepResult& result) {
  const std::uint64_t windows = result.step * windows_a_step_;
  write("Train/Samples/train_loss", result.loss, windows);
  write("Train/Samples/lr", result.lr, windows);
  if (scaled_) write("Train/Samples/loss_scale", result.scale, windows);
}

void Monitors::append(std::uint64_t step, const Evaluation& evaluation) {
  write("Train/Samples/eval_loss", evaluation.loss, step * windows_a_step_);
}

void Monitors::write(std::string_view name, double value, std::uint64_t windows) {
  try {
    write_all(name, value, windows);
  } catch (const Error& error) {
    note_(fmt::format("the monitors stop here: {}", error.what()));
    events_.reset();
    csv_directory_.reset();
  }
}

void Monitors::write_all(std::string_view name, double value, std::uint64_t windows) {
  if (events_) events_->append(name, value, windows);
  if (!csv_directory_) return;
  write_whole(csv_file(name), fmt::format("{},{}\n", windows, value), name);
}

FileDescriptor& Monitors::csv_file(std::string_view name) {
  const auto found = csv_files_.find(name);
  if (found != csv_files_.end()) return found->second;
  std::string file_name(name);
  std::replace(file_name.begin(), file_name.end(), '/', '_');
  const std::filesystem::path path = *csv_directory_ / (file_name + ".csv");
  const std::uint64_t kept = kept_bytes(path, kept_windows_);
  FileDescriptor file = open_file(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0644);
  if (::ftruncate(file.get(), static_cast<off_t>(kept)) != 0) {
    throw_errno(errno, fmt::format("truncate {}", path.string()));
  }
  if (kept == 0) {
    write_whole(file, fmt::format("step,{}\n", name.substr(name.rfind('/') + 1)), name);
  }
  return csv_files_.emplace(name, std::move(file)).first->second;
}

}  // namespace spillway::engine
