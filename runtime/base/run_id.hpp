// RunId: who a run is. Random, made once, recorded in every file that belongs to the run, so that
// no run takes another's state for its own.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace spillway {

struct RunId {
  std::array<std::uint64_t, 2> words{};

  friend bool operator==(const RunId&, const RunId&) = default;
};

/// Draws 128 bits from the system's random source. Throws `Error{io_error}` if it gives none.
[[nodiscard]] RunId random_run_id();
/// Returns 32 lower-case hex digits, the first word first.
[[nodiscard]] std::string to_text(const RunId& id);
/// Reads what `to_text` wrote; returns nothing for any other text.
[[nodiscard]] std::optional<RunId> parse_run_id(std::string_view text);

}  // namespace spillway
