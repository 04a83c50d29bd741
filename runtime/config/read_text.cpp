#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>

#include "runtime/base/json.hpp"
#include "runtime/config/detail/config_file.hpp"

namespace spillway::config::detail {
namespace {

using nlohmann::json;

constexpr std::size_t kMostLevels = 64;

/// The text with every comment blanked, so that lines and columns in messages stay true.
std::string without_comments(std::string_view text, std::string_view origin) {
  std::string plain(text);
  const auto blank = [&](std::size_t from, std::size_t to) {
    std::replace_if(
        plain.begin() + static_cast<std::ptrdiff_t>(from),
        plain.begin() + static_cast<std::ptrdiff_t>(to),
        [](char c) { return c != '\n' && c != '\r'; }, ' ');
  };
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (in_string) {
      if (text[i] == '\\') {
        ++i;  // whatever is escaped does not end the string
      } else if (text[i] == '"') {
        in_string = false;
      }
      continue;
    }
    const std::string_view rest = text.substr(i);
    if (rest.starts_with('"')) {
      in_string = true;
    } else if (rest.starts_with('#') || rest.starts_with("//")) {
      const std::size_t end = std::min(text.find('\n', i), text.size());
      blank(i, end);
      i = end;
    } else if (rest.starts_with("/*")) {
      const std::size_t end = text.find("*/", i + 2);
      if (end == std::string_view::npos) {
        const std::string_view before = text.substr(0, i);
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("{}: the comment that starts at line {} never ends; write */",
                                origin, 1 + std::count(before.begin(), before.end(), '\n')));
      }
      blank(i, end + 2);
      i = end + 1;
    }
  }
  return plain;
}

}  // namespace

json parse_commented_json(std::string_view text, std::string_view origin) {
  const std::string plain = without_comments(text, origin);
  json root = parse_json(
      plain, {.origin = origin, .code = ErrorCode::invalid_argument, .most_levels = kMostLevels});
  if (!root.is_object()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: a configuration is an object, {{ ... }}", origin));
  }
  return root;
}

}  // namespace spillway::config::detail
