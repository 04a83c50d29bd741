// What a mistyped word was probably meant to be.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace spillway::cli {

/// Returns the candidate that the fewest typing mistakes (a letter more, less, changed, or two
/// exchanged) make `word` of; absent where none is near: at most one mistake for every three
/// letters.
[[nodiscard]] std::optional<std::string> nearest(std::string_view word,
                                                 std::span<const std::string> candidates);

}  // namespace spillway::cli
