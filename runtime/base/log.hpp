// Log lines on stderr through spdlog. Silent until somebody asks: the level is set in tools/.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace spillway {

enum class LogLevel { debug, info, warning, error, off };

void set_log_level(LogLevel level);
/// Whether a line of `level` would be written.
[[nodiscard]] bool log_enabled(LogLevel level) noexcept;
/// Writes one line if `level` is enabled.
void log_line(LogLevel level, std::string_view text) noexcept;
/// Formats and writes one line; nothing is formatted, and nothing allocated, for a disabled level.
/// Safe in destructors: a line that cannot be formatted is lost.
void log_formatted(LogLevel level, fmt::string_view format, fmt::format_args arguments) noexcept;

template <class... Arguments>
void log_debug(fmt::format_string<Arguments...> format, Arguments&&... arguments) noexcept {
  log_formatted(LogLevel::debug, format, fmt::make_format_args(arguments...));
}
template <class... Arguments>
void log_info(fmt::format_string<Arguments...> format, Arguments&&... arguments) noexcept {
  log_formatted(LogLevel::info, format, fmt::make_format_args(arguments...));
}
template <class... Arguments>
void log_warning(fmt::format_string<Arguments...> format, Arguments&&... arguments) noexcept {
  log_formatted(LogLevel::warning, format, fmt::make_format_args(arguments...));
}
template <class... Arguments>
void log_error(fmt::format_string<Arguments...> format, Arguments&&... arguments) noexcept {
  log_formatted(LogLevel::error, format, fmt::make_format_args(arguments...));
}

}  // namespace spillway
