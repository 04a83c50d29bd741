// SourceLocation: where a call was written. std::source_location by another name, because clang 14
// has no <source_location> with the GNU library.
#pragma once

#include <cstdint>

namespace spillway {

class SourceLocation {
 public:
  /// Returns, as a default argument, the place of the call that leaves it out.
  [[nodiscard]] static constexpr SourceLocation current(
      const char* file = __builtin_FILE(), std::uint32_t line = __builtin_LINE(),
      const char* function = __builtin_FUNCTION()) {
    return SourceLocation(file, line, function);
  }

  [[nodiscard]] constexpr const char* file_name() const { return file_; }
  [[nodiscard]] constexpr std::uint32_t line() const { return line_; }
  [[nodiscard]] constexpr const char* function_name() const { return function_; }

 private:
  constexpr SourceLocation(const char* file, std::uint32_t line, const char* function)
      : file_(file), line_(line), function_(function) {}

  const char* file_;
  std::uint32_t line_;
  const char* function_;
};

}  // namespace spillway
