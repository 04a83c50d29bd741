// Which window of the token file comes next. Stateless: the cursor is a number that a commit saves.
#pragma once

#include <cstdint>

namespace spillway::data {

enum class Order : std::uint8_t { shuffled, sequential };

/// Windows never overlap: window w covers inputs [w * context, (w + 1) * context) and the target of
/// each input is the next token of the file. A tail shorter than a window is dropped.
class Sampler {
 public:
  /// Throws `Error{invalid_argument}` if not even one window fits.
  Sampler(std::uint64_t tokens, std::uint32_t context, Order order, std::uint64_t seed);

  [[nodiscard]] std::uint64_t windows() const { return windows_; }
  /// Returns the first token of the `cursor`-th window ever drawn. Each epoch visits every window
  /// once; the shuffled order is a permutation keyed by seed and epoch, the same on every machine.
  [[nodiscard]] std::uint64_t first_token(std::uint64_t cursor) const;

 private:
  std::uint64_t windows_;
  std::uint32_t context_;
  Order order_;
  std::uint64_t seed_;
};

}  // namespace spillway::data
