#include "runtime/base/log.hpp"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace spillway {
namespace {

spdlog::logger& logger() {
  // A logger is process-wide by nature: stderr is. It is never destroyed: threads may still log
  // while the process exits.
  static spdlog::logger* const instance = [] {
    auto* const made =
        new spdlog::logger("spillway", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%H:%M:%S.%e %^%l%$ %v");
    made->set_level(spdlog::level::warn);
    return made;
  }();
  return *instance;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::debug: return spdlog::level::debug;
    case LogLevel::info: return spdlog::level::info;
    case LogLevel::warning: return spdlog::level::warn;
    case LogLevel::error: return spdlog::level::err;
    case LogLevel::off: return spdlog::level::off;
  }
  return spdlog::level::off;
}

}  // namespace

void set_log_level(LogLevel level) { logger().set_level(to_spdlog(level)); }

bool log_enabled(LogLevel level) noexcept { return logger().should_log(to_spdlog(level)); }

void log_formatted(LogLevel level, fmt::string_view format, fmt::format_args arguments) noexcept {
  if (!log_enabled(level)) return;
  try {
    log_line(level, fmt::vformat(format, arguments));
  } catch (...) {
    log_line(level, "a message could not be formatted for want of memory");
  }
}

void log_line(LogLevel level, std::string_view text) noexcept {
  logger().log(to_spdlog(level), spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace spillway
