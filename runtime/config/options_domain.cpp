#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "runtime/config/detail/option_builders.hpp"

namespace spillway::config {
namespace {

using detail::kLargestNumber;
using detail::shown;
using nlohmann::json;

constexpr std::size_t kShownCharacters = 64;

/// Whole numbers may be spelled 2e8, as bucket sizes are.
bool is_whole(const json& value) {
  if (value.is_number_integer()) return true;
  if (!value.is_number_float()) return false;
  const double number = value.get<double>();
  return std::abs(number) <= 0x1p53 && number == std::floor(number);
}

bool is_size(const json& value) {
  if (!value.is_string()) return is_whole(value) && value.get<double>() >= 0;
  try {
    static_cast<void>(parse_bytes(value.get_ref<const std::string&>()));
    return true;
  } catch (const Error&) {  // said again with the key's name
    return false;
  }
}

bool is_folder(const json& value) {
  if (!value.is_string()) return false;
  const std::filesystem::path name = value.get<std::string>();
  return !name.empty() && name == name.filename() && name != "." && name != "..";
}

std::string range_in_words(const Domain& domain) {
  // A whole number that fills its type has no bound that anybody needs to know.
  const bool whole = domain.kind == Kind::whole || domain.kind == Kind::wholes;
  const bool open = whole && domain.high >= 0x1p63;
  const auto text = [&](double number) {
    if (whole) return fmt::format("{:.0f}", number);
    return number == kLargestNumber ? "1e30" : fmt::format("{}", number);
  };
  std::string words = fmt::format("{} {}", domain.above ? "above" : "from", text(domain.low));
  if (open) return words;
  return words + fmt::format("{} {}",
                             domain.below   ? ", below"
                             : domain.above ? ", up to"
                                            : " to",
                             text(domain.high));
}

/// What is wrong with the numbers of an array; empty where nothing is.
std::string fault_of_numbers(const Domain& domain, const json& numbers) {
  for (const json& each : numbers) {
    if (!each.is_number() && domain.kind != Kind::wholes) return "is an array";
    Domain one = domain;
    one.kind = domain.kind == Kind::wholes ? Kind::whole : Kind::number;
    if (!one.fault_of(each).empty()) return fmt::format("holds {}", shown(each));
    if (domain.kind == Kind::rate && each != numbers[0]) {
      return fmt::format(
          "holds {} and {}, but all parameters have the same rate here, decayed or not",
          shown(numbers[0]), shown(each));
    }
  }
  return {};
}

std::string fault_of_paths(const json& paths) {
  for (const json& each : paths.is_array() ? paths : json::array({paths})) {
    if (!each.is_string()) return "is " + shown(paths);
    if (each.get_ref<const std::string&>().empty()) return "holds an empty path";
  }
  return {};
}

}  // namespace

std::string detail::shown(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kShownCharacters) text = text.substr(0, kShownCharacters) + "...";
  return text;
}

std::string Domain::in_words() const {
  switch (kind) {
    case Kind::flag: return "true or false";
    case Kind::whole: return "a whole number " + range_in_words(*this);
    case Kind::number: return "a number " + range_in_words(*this);
    case Kind::rate:
      return fmt::format("a number {}, or an array of equal ones", range_in_words(*this));
    case Kind::pair: return "an array of two numbers " + range_in_words(*this);
    case Kind::wholes: return "an array of whole numbers " + range_in_words(*this);
    case Kind::name: return fmt::format("one of {}", fmt::join(names, ", "));
    case Kind::folder: return "the name of one folder";
    case Kind::path: return "a path";
    case Kind::paths: return "a path or an array of paths";
    case Kind::size: return "a size such as \"512MiB\" or \"24GB\", or a number of bytes";
  }
  return {};
}

std::string Domain::fault_of(const json& value) const {
  const auto unless = [&](bool allowed) { return allowed ? std::string() : "is " + shown(value); };
  const auto in_range = [&] {
    const auto number = value.get<double>();
    return (above ? number > low : number >= low) && (below ? number < high : number <= high);
  };
  switch (kind) {
    case Kind::flag: return unless(value.is_boolean());
    case Kind::whole: return unless(is_whole(value) && in_range());
    case Kind::number: return unless(value.is_number() && in_range());
    case Kind::rate:
      if (value.is_number()) return unless(in_range());
      return value.is_array() && !value.empty() ? fault_of_numbers(*this, value) : unless(false);
    case Kind::pair:
      return value.is_array() && value.size() == 2 ? fault_of_numbers(*this, value) : unless(false);
    case Kind::wholes:
      return value.is_array() && !value.empty() ? fault_of_numbers(*this, value) : unless(false);
    case Kind::name:
      return unless(value.is_string() &&
                    std::ranges::find(names, value.get<std::string_view>()) != names.end());
    case Kind::folder: return unless(is_folder(value));
    case Kind::path: return unless(value.is_string());
    case Kind::paths: return fault_of_paths(value);
    case Kind::size: return unless(is_size(value));
  }
  return {};
}

}  // namespace spillway::config
