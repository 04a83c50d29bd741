#include "runtime/engine/report/metrics_log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/base/json.hpp"

namespace spillway::engine {
namespace {

/// JSON has no word for a number that is not finite.
std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : std::string("null");
}

std::string_view name_of(UpdatesAhead ahead) {
  switch (ahead) {
    case UpdatesAhead::none: return "none";
    case UpdatesAhead::paused: return "paused";
    case UpdatesAhead::kept: return "kept";
    case UpdatesAhead::undone: return "undone";
  }
  return "unknown";
}

/// What of a log goes on.
struct Kept {
  std::string text;
  std::uint64_t read = 0;  ///< bytes of the file up to the end of the last line that is kept
  std::size_t damaged = 0;
  std::uint64_t last_step = 0;
  bool evaluated = true;  ///< the last line has a validation loss
};

Kept kept_of(const std::filesystem::path& path, std::uint64_t last_step) {
  Kept kept;
  if (!is_there(path)) return kept;
  const std::string text = read_text_file(path, Bytes{std::numeric_limits<std::uint64_t>::max()});
  // Lines that were not read would be cut off.
  const std::uint64_t size = std::filesystem::file_size(path);
  check(text.size() == size, ErrorCode::io_error,
        fmt::format("{}: only {} of {} bytes could be read", path.string(), text.size(), size));
  std::istringstream file(text);
  std::uint64_t read = 0;
  std::size_t damaged = 0;
  std::string line;
  while (std::getline(file, line) && !file.eof()) {
    read += line.size() + 1;
    const auto entry = json_or_null(line);
    const bool whole =
        entry.is_object() && entry.contains("step") && entry["step"].is_number_unsigned();
    if (!whole) ++damaged;
    if (!whole || entry["step"] > last_step) continue;
    kept.text += line + "\n";
    kept.read = read;
    kept.damaged = damaged;  // what comes after the last good line was not synchronised
    kept.last_step = entry["step"];
    kept.evaluated = entry.contains("val_loss");
  }
  return kept;
}

}  // namespace

MetricsLog::MetricsLog(std::filesystem::path path, std::uint64_t keep_up_to)
    : path_(std::move(path)) {
  const Kept kept = kept_of(path_, keep_up_to);
  damaged_ = kept.damaged;
  can_amend_ = !kept.evaluated && kept.last_step == keep_up_to;
  end_ = kept.text.size();
  if (kept.read != end_) write_file_atomically(path_, kept.text);
  file_ = open_file(path_, O_WRONLY | O_CREAT | O_NOFOLLOW, 0644);
  if (::ftruncate(file_.get(), static_cast<off_t>(end_)) != 0) {
    throw_errno(errno, fmt::format("truncate {}", path_.string()));
  }
  synchronize();
  synchronize_directory(path_.parent_path());
}

void MetricsLog::write(std::span<const char> text, std::uint64_t at) {
  const ssize_t written = ::pwrite(file_.get(), text.data(), text.size(), static_cast<off_t>(at));
  if (written < 0) throw_errno(errno, fmt::format("write {}", path_.string()));
  check(static_cast<std::size_t>(written) == text.size(), ErrorCode::io_error,
        fmt::format("{}: only {} of {} bytes were written; the disk is full", path_.string(),
                    written, text.size()));
  end_ = at + text.size();
  dirty_ = true;
}

void MetricsLog::append(const StepResult& result, const Exposed& exposed) {
  fmt::memory_buffer line;
  const auto out = std::back_inserter(line);
  fmt::format_to(out,
                 R"({{"step":{},"loss":{},"grad_norm":{},"lr":{},"scale":{},"tokens":{},)"
                 R"("seconds":{},"skipped":{},"exposed":{{)",
                 result.step, number(result.loss), number(result.grad_norm), number(result.lr),
                 number(result.scale), result.tokens, number(result.seconds), result.skipped);
  for (std::size_t lane = 0; lane < exposed.size(); ++lane) {
    fmt::format_to(out, R"({}"{}":{})", lane == 0 ? "" : ",",
                   plan::name_of(static_cast<plan::Lane>(lane)), number(exposed[lane]));
  }
  fmt::format_to(out, "}}");
  if (result.ahead != UpdatesAhead::none) {
    fmt::format_to(out, R"(,"ahead":"{}")", name_of(result.ahead));
  }
  fmt::format_to(out, "}}\n");
  complete_ = false;
  write({line.data(), line.size()}, end_);
  complete_ = true;
  can_amend_ = true;
}

void MetricsLog::amend(double val_loss) {
  SPILLWAY_ASSERT(can_amend_);
  constexpr std::size_t kEnd = 2;  // the line's brace and its end
  write(fmt::format(",\"val_loss\":{}}}\n", number(val_loss)), end_ - kEnd);
  can_amend_ = false;
}

void MetricsLog::synchronize() {
  if (!dirty_) return;
  if (::fdatasync(file_.get()) != 0) throw_errno(errno, fmt::format("fsync {}", path_.string()));
  dirty_ = false;
}

void MetricsLog::check_present() const {
  if (leads_to(path_, file_.get())) return;
  throw Error(ErrorCode::io_error,
              fmt::format("{} is gone: it was removed or replaced while the run was trained",
                          path_.string()));
}

}  // namespace spillway::engine
