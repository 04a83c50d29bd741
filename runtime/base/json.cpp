#include "runtime/base/json.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

namespace spillway {
namespace {

constexpr std::size_t kBriefLength = 80;
constexpr std::size_t kComplaintLength = 200;

std::string cut(std::string text, std::size_t length) {
  if (text.size() <= length) return text;
  std::size_t end = length;
  // Not in the middle of a UTF-8 sequence.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U) --end;
  text.resize(end);
  return text + "...";
}

/// Watches one document while it is read.
class Guard {
 public:
  explicit Guard(const JsonSource& source) : source_(source) {}

  void begin(std::size_t depth) const {
    check(depth < source_.most_levels, source_.code,
          fmt::format("{}: nested deeper than {} levels", source_.origin, source_.most_levels));
  }
  void begin_object() { open_.emplace_back(); }
  void end_object() { open_.pop_back(); }
  void enter(const std::string& key) {
    Object& object = open_.back();
    object.latest = key;
    if (object.keys.insert(key).second) return;
    std::string path;
    for (const Object& each : open_) path += (path.empty() ? "" : ".") + each.latest;
    std::string shown = brief_name(path).substr(1);  // its quotes would look like the key's own
    if (shown.ends_with('"')) shown.pop_back();
    throw Error(source_.code,
                fmt::format("{}: key {} stands twice; remove one of them", source_.origin, shown));
  }

 private:
  struct Object {
    std::set<std::string> keys;
    std::string latest;
  };

  const JsonSource& source_;
  std::vector<Object> open_;
};

template <class Json>
Json parse(std::string_view text, const JsonSource& source) {
  Guard guard(source);
  using Event = typename Json::parse_event_t;
  const auto watch = [&guard](int depth, Event event, Json& parsed) {
    if (event == Event::object_start || event == Event::array_start) {
      guard.begin(static_cast<std::size_t>(depth));
    }
    if (event == Event::object_start) guard.begin_object();
    if (event == Event::object_end) guard.end_object();
    if (event == Event::key) guard.enter(parsed.template get_ref<const std::string&>());
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::exception& error) {
    throw Error(source.code, fmt::format("{}: not JSON: {}", source.origin,
                                         cut(error.what(), kComplaintLength)));
  }
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const JsonSource& source) {
  return parse<nlohmann::json>(text, source);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const JsonSource& source) {
  return parse<nlohmann::ordered_json>(text, source);
}

nlohmann::json json_or_null(std::string_view text) {
  try {
    return parse_json(text, {});
  } catch (const Error&) {
    return nullptr;
  }
}

std::string brief(const nlohmann::ordered_json& value) {
  return cut(value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace),
             kBriefLength);
}

bool is_utf8(std::string_view text) {
  try {
    static_cast<void>(nlohmann::json(text).dump());
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
  return true;
}

std::string brief_name(std::string_view name) {
  return brief(nlohmann::ordered_json(std::string(name)));
}

}  // namespace spillway
