// What a mistyped word was probably meant to be.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::bench {

/// Returns the candidate that the fewest typing mistakes (a letter more, less, changed, or two
/// exchanged) make `word` of; absent where none is near: at most one mistake for every three
/// letters.
[[nodiscard]] std::optional<std::string> nearest(std::string_view word,
                                                 std::span<const std::string> candidates);

/// Returns at most `count` candidates, those of the fewest mistakes first; letters before and
/// behind the whole word count as none, and neither does upper case.
[[nodiscard]] std::vector<std::string> nearest_first(std::string_view word,
                                                     std::span<const std::string> candidates,
                                                     std::size_t count);

}  // namespace spillway::bench
