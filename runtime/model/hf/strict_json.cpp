#include "runtime/model/hf/strict_json.hpp"

#include <fmt/format.h>

#include <set>
#include <vector>

namespace spillway::model::detail {
namespace {

constexpr std::size_t kBriefLength = 80;

std::string cut(std::string text) {
  if (text.size() <= kBriefLength) return text;
  std::size_t end = kBriefLength;
  // Not in the middle of a UTF-8 sequence.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U) --end;
  text.resize(end);
  return text + "...";
}

template <class Json>
Json parse_strict(std::string_view text, std::string_view origin, ErrorCode code) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  using Event = typename Json::parse_event_t;
  const auto watch = [&](int depth, Event event, Json& parsed) {
    if (event == Event::object_start || event == Event::array_start) {
      check(static_cast<std::size_t>(depth) < kMaxJsonDepth, code,
            fmt::format("{}: nested deeper than {} levels", origin, kMaxJsonDepth));
    }
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key) {
      const auto& key = parsed.template get_ref<const std::string&>();
      check(keys.back().insert(key).second, code,
            fmt::format("{}: the key {} appears twice in one object", origin, brief_name(key)));
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::exception& error) {
    throw Error(code, fmt::format("{}: not valid JSON: {}", origin, cut(error.what())));
  }
}

}  // namespace

OrderedJson parse_strict_json(std::string_view text, std::string_view origin, ErrorCode code) {
  return parse_strict<OrderedJson>(text, origin, code);
}

nlohmann::json parse_strict_table(std::string_view text, std::string_view origin, ErrorCode code) {
  return parse_strict<nlohmann::json>(text, origin, code);
}

std::string brief(const OrderedJson& value) {
  return cut(value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
}

std::string brief_name(std::string_view name) { return brief(OrderedJson(std::string(name))); }

}  // namespace spillway::model::detail
