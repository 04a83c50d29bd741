// ClosingReason: why an engine has closed, in memory of its own, so that closing it cannot fail.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace spillway::nvme_swap::detail {

class ClosingReason {
 public:
  /// Notes that `call` of `engine` failed with `error`; without fmt, which may throw.
  void set(const char* engine, const char* call, int error) {
    const int written =
        std::snprintf(text_.data(), text_.size(), "%s was closed, since %s failed: %s (errno %d)",
                      engine, call, std::strerror(error), error);
    length_ = std::min(static_cast<std::size_t>(written), text_.size() - 1);
  }
  /// Empty while the engine has not closed.
  [[nodiscard]] std::string_view text() const { return {text_.data(), length_}; }

 private:
  std::array<char, 256> text_{};
  std::size_t length_ = 0;
};

}  // namespace spillway::nvme_swap::detail
