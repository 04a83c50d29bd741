#include "runtime/engine/metrics_log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/base/error.hpp"

namespace spillway::engine {
namespace {

/// JSON has no word for a number that is not finite.
std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : std::string("null");
}

/// Bytes of the whole lines whose step is at most `last_step`.
std::uint64_t kept_bytes(const std::filesystem::path& path, std::uint64_t last_step) {
  std::ifstream file(path, std::ios::binary);
  std::uint64_t kept = 0;
  std::string line;
  while (std::getline(file, line) && !file.eof()) {
    const auto entry = nlohmann::json::parse(line, nullptr, false);
    if (!entry.is_object() || !entry.contains("step") || !entry["step"].is_number_unsigned() ||
        entry["step"] > last_step) {
      break;
    }
    kept += line.size() + 1;
  }
  return kept;
}

}  // namespace

MetricsLog::MetricsLog(const std::filesystem::path& path, std::uint64_t keep_up_to) : path_(path) {
  const std::uint64_t kept = kept_bytes(path, keep_up_to);
  const int descriptor =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (descriptor < 0) throw_errno(errno, fmt::format("open {}", path.string()));
  file_ = FileDescriptor(descriptor);
  if (::ftruncate(descriptor, static_cast<off_t>(kept)) != 0) {
    throw_errno(errno, fmt::format("truncate {}", path.string()));
  }
}

void MetricsLog::append(const StepResult& result, const Exposed& exposed,
                        std::optional<double> val_loss) {
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
  if (val_loss) fmt::format_to(out, R"(,"val_loss":{})", number(*val_loss));
  fmt::format_to(out, "}}\n");
  const ssize_t written = ::write(file_.get(), line.data(), line.size());
  if (written < 0) throw_errno(errno, fmt::format("write {}", path_.string()));
  check(static_cast<std::size_t>(written) == line.size(), ErrorCode::io_error,
        fmt::format("{}: only {} of {} bytes were written; the disk is full", path_.string(),
                    written, line.size()));
}

}  // namespace spillway::engine
