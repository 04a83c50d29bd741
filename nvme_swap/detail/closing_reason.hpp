// ClosingReason: why an engine has closed, in memory of its own, so that closing it cannot fail.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace spillway::nvme_swap::detail {

class ClosingReason {
 public:
  /// `call` of `engine` has failed with `error`.
  void set(std::string_view engine, std::string_view call, int error) {
    const auto written = fmt::format_to_n(text_.data(), text_.size(),
                                          "{} was closed, since {} failed: {} (errno {})", engine,
                                          call, std::strerror(error), error);
    length_ = std::min(written.size, text_.size());
  }
  /// Returns an empty text while the engine has not closed.
  [[nodiscard]] std::string_view text() const { return {text_.data(), length_}; }

 private:
  std::array<char, 256> text_{};
  std::size_t length_ = 0;
};

}  // namespace spillway::nvme_swap::detail
