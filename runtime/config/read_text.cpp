#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/config/detail/config_file.hpp"

namespace spillway::config::detail {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;

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

/// Notices a key that stands twice in one object.
class DuplicateGuard {
 public:
  explicit DuplicateGuard(std::string_view origin) : origin_(origin) {}

  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: nested deeper than {} levels", origin_, kMaxDepth));
    }
    switch (event) {
      case json::parse_event_t::object_start: open_.emplace_back(); break;
      case json::parse_event_t::object_end: open_.pop_back(); break;
      case json::parse_event_t::key: enter(parsed.get_ref<const std::string&>()); break;
      default: break;
    }
    return true;
  }

 private:
  struct Object {
    std::set<std::string> keys;
    std::string latest;
  };

  void enter(const std::string& key) {
    Object& object = open_.back();
    object.latest = key;
    if (object.keys.insert(key).second) return;
    std::string path;
    for (const Object& each : open_) path = join_path(path, each.latest);
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: key {} stands twice; remove one of them", origin_, path));
  }

  std::string_view origin_;
  std::vector<Object> open_;
};

}  // namespace

json parse_commented_json(std::string_view text, std::string_view origin) {
  const std::string plain = without_comments(text, origin);
  DuplicateGuard guard(origin);
  json root;
  try {
    root = json::parse(plain, [&guard](int depth, json::parse_event_t event, json& parsed) {
      return guard(depth, event, parsed);
    });
  } catch (const json::exception& error) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: not JSON: {}", origin, error.what()));
  }
  if (!root.is_object()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: a configuration is an object, {{ ... }}", origin));
  }
  return root;
}

}  // namespace spillway::config::detail
