// Text in lines that are no wider than a terminal. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace spillway::cli {

/// The widths that texts are wrapped to; a narrower or a wider terminal counts as the nearest.
inline constexpr std::size_t kLeastColumns = 40;
inline constexpr std::size_t kMostColumns = 200;

/// Breaks lines of more than `columns` characters between words. What follows stands below the
/// line's text, which begins behind its title or flag, a gap of two blanks at least; where that
/// leaves less than half of the width, on lines of its own. A word that is too long stays whole.
[[nodiscard]] std::string wrapped(std::string_view text, std::size_t columns);

}  // namespace spillway::cli
