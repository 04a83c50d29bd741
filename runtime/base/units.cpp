#include "runtime/base/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "runtime/base/error.hpp"

namespace spillway {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};

constexpr std::array<Unit, 14> kUnits{{{"", 1},
                                       {"B", 1},
                                       {"KiB", 0x1p10},
                                       {"MiB", 0x1p20},
                                       {"GiB", 0x1p30},
                                       {"TiB", 0x1p40},
                                       {"KB", 1e3},
                                       {"MB", 1e6},
                                       {"GB", 1e9},
                                       {"TB", 1e12},
                                       {"K", 0x1p10},
                                       {"M", 0x1p20},
                                       {"G", 0x1p30},
                                       {"T", 0x1p40}}};

/// Units are told apart by their letters, not by their case: "24g" is "24G".
bool same_letters(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::ranges::equal(a, b, {}, lower, lower);
}

}  // namespace

Bytes parse_bytes(std::string_view text) {
  const char* const last = text.data() + text.size();
  double number = 0;
  const auto [end, status] = std::from_chars(text.data(), last, number);
  std::uint64_t whole = 0;
  const auto [whole_end, whole_status] = std::from_chars(text.data(), last, whole);
  // A double holds whole numbers up to 2^53 only.
  const bool is_whole = whole_status == std::errc{} && whole_end == end;
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const Unit& known : kUnits) {
    const double bytes = number * known.bytes;
    const bool in_range = bytes >= 0 && bytes < 0x1p63;
    if (status == std::errc{} && same_letters(unit, known.name) && in_range) {
      if (is_whole) return Bytes{whole * static_cast<std::uint64_t>(known.bytes)};
      return Bytes{static_cast<std::uint64_t>(std::floor(bytes))};
    }
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("\"{}\" is not a size; write 512MiB, 24GB or a number of bytes", text));
}

std::string format_bytes(Bytes bytes) {
  constexpr std::array<std::string_view, 5> kNames{"B", "KiB", "MiB", "GiB", "TiB"};
  auto amount = static_cast<double>(bytes.value());
  std::size_t unit = 0;
  // What would round to 1024 of one unit is 1.00 of the next.
  while (amount >= (unit == 0 ? 1024 : 1023.5) && unit + 1 < kNames.size()) {
    amount /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes.value());
  const int decimals = amount >= 99.95 ? 0 : amount >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", amount, decimals, kNames[unit]);
}

}  // namespace spillway
