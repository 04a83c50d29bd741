// Log lines on stderr through spdlog. Silent until somebody asks: the level is set in tools/.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace spillway {

enum class LogLevel { debug, info, warning, error, off };

void set_log_level(LogLevel level);
/// Writes one line if `level` is enabled.
void log_line(LogLevel level, std::string_view text) noexcept;

template <class... Arguments>
void log_debug(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  log_line(LogLevel::debug, fmt::format(format, std::forward<Arguments>(arguments)...));
}
template <class... Arguments>
void log_info(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  log_line(LogLevel::info, fmt::format(format, std::forward<Arguments>(arguments)...));
}
template <class... Arguments>
void log_warning(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  log_line(LogLevel::warning, fmt::format(format, std::forward<Arguments>(arguments)...));
}
template <class... Arguments>
void log_error(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  log_line(LogLevel::error, fmt::format(format, std::forward<Arguments>(arguments)...));
}

}  // namespace spillway
