// MicroBatch: the tokens of one micro-batch in host memory, filled window by window from a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/data/token_file.hpp"

namespace spillway::data {

/// A target that the loss ignores: no loss, no gradient.
inline constexpr std::int32_t kIgnoredTarget = -1;

/// A view; the memory belongs to its maker.
struct MicroBatch {
  std::span<std::int32_t> tokens;  ///< inputs [rows, context], then targets [rows, context]
  std::uint32_t context = 0;
  std::uint32_t vocab_size = 0;

  [[nodiscard]] std::size_t rows() const { return tokens.size() / 2 / context; }
  [[nodiscard]] std::span<std::int32_t> inputs(std::size_t row) const {
    return tokens.subspan(row * context, context);
  }
  [[nodiscard]] std::span<std::int32_t> targets(std::size_t row) const {
    return tokens.subspan(tokens.size() / 2 + row * context, context);
  }
};

/// Number of whole windows in `file`: each has `context` inputs, and the target of an input is the
/// token after it. Windows do not overlap.
[[nodiscard]] std::uint64_t window_count(const TokenFile& file, std::uint32_t context);

/// Fills `row` with the window whose first input is token `first`. Errors are TokenFile::read's.
void read_window(const TokenFile& file, std::uint64_t first, const MicroBatch& batch,
                 std::size_t row);

/// Fills all rows with windows `first_window`, `first_window` + 1, ... in file order; rows beyond
/// the last window have no targets.
void read_windows(const TokenFile& file, std::uint64_t first_window, const MicroBatch& batch);

}  // namespace spillway::data
