// Strong quantity types: a number that cannot be mistaken for another kind of number.
#pragma once

#include <compare>
#include <cstdint>

namespace spillway {

/// A number with a meaning. Explicit both ways: `Bytes{4096}`, `bytes.value()`. Quantities of one
/// kind add, subtract and compare; a plain factor scales them.
template <class Tag, class Rep = std::uint64_t>
class Strong {
 public:
  using rep = Rep;

  constexpr Strong() = default;
  constexpr explicit Strong(Rep value) : value_(value) {}

  [[nodiscard]] constexpr Rep value() const { return value_; }

  constexpr auto operator<=>(const Strong&) const = default;

  constexpr Strong& operator+=(Strong other) {
    value_ += other.value_;
    return *this;
  }
  constexpr Strong& operator-=(Strong other) {
    value_ -= other.value_;
    return *this;
  }
  friend constexpr Strong operator+(Strong a, Strong b) { return a += b; }
  friend constexpr Strong operator-(Strong a, Strong b) { return a -= b; }
  friend constexpr Strong operator*(Strong a, Rep factor) { return Strong{a.value_ * factor}; }
  friend constexpr Strong operator*(Rep factor, Strong a) { return a * factor; }
  friend constexpr Strong operator/(Strong a, Rep divisor) { return Strong{a.value_ / divisor}; }
  friend constexpr Rep operator/(Strong a, Strong b) { return a.value_ / b.value_; }

 private:
  Rep value_ = 0;
};

}  // namespace spillway
