#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/engine/detail/config_section.hpp"

namespace spillway::engine::detail {
namespace {

using nlohmann::json;

constexpr std::size_t kShownCharacters = 64;

bool is_auto(const json& value) {
  return value.is_string() && value.get_ref<const std::string&>() == "auto";
}

/// Whole numbers may be spelled 2e8, as bucket sizes are.
std::optional<std::uint64_t> whole(const json& value) {
  if (value.is_number_unsigned()) return value.get<std::uint64_t>();
  if (!value.is_number_float()) return std::nullopt;  // a negative integer, or no number
  const double number = value.get<double>();
  const bool exact = number >= 0 && number <= 0x1p53 && number == std::floor(number);
  return exact ? std::optional(static_cast<std::uint64_t>(number)) : std::nullopt;
}

/// What the switches inside a feature's object say.
struct Switches {
  bool any = false;      ///< there is an `enabled`
  bool on = false;       ///< ... that is true
  bool setting = false;  ///< there is any other value
};

/// A number of ranks or the like that is what there is without the feature: 1, or 0 for "not set".
bool is_degree_of_one(const json& value) {
  return value.is_number_integer() && value.get<double>() <= 1;
}

void look_for_switches(const json& object, Switches& found) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      look_for_switches(value, found);  // as deep as the parser lets a file nest
    } else if (key == "enabled") {
      found.any = true;
      found.on = found.on || value == true;
    } else {
      const bool off = value.is_null() || value == false || is_degree_of_one(value);
      found.setting = found.setting || !off;
    }
  }
}

/// True for a feature that the file switches on: `true`, any `enabled` that is true, or settings
/// where nothing says `enabled` (sparse_attention has no such key).
bool is_on(const json& feature) {
  if (is_degree_of_one(feature)) return false;
  if (!feature.is_object()) return feature != false;
  Switches found;
  look_for_switches(feature, found);
  return found.on || (found.setting && !found.any);
}

}  // namespace

std::string shown(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kShownCharacters) text = text.substr(0, kShownCharacters) + "...";
  return text;
}

std::string join_path(std::string_view section, std::string_view key) {
  return section.empty() ? std::string(key) : fmt::format("{}.{}", section, key);
}

Section::Section(ConfigContext& context, const json* object, std::string path)
    : context_(context), object_(object), path_(std::move(path)) {
  if (object_ != nullptr) context_.objects_.emplace_back(path_, object_);
  take_unneeded();
  take_off_only();
}

void Section::take_unneeded() {
  for (const UnneededKey& each : unneeded_keys()) {
    if (each.section != path_) continue;
    register_key(each.key);
    if (object_ != nullptr && object_->contains(each.key)) {
      note(each.key, fmt::format("not needed: {}", each.reason));
    }
  }
}

void Section::take_off_only() {
  for (const OffOnlyKey& each : off_only_keys()) {
    if (each.section != path_) continue;
    const json* const value = find(each.key, {"off"});
    if (value == nullptr || !is_on(*value)) continue;
    context_.attempt("", [&] { refuse(ErrorCode::not_supported, each.key, each.reason); });
  }
}

void Section::register_key(std::string_view key) { context_.known_.push_back({path_, key}); }

const json* Section::find(std::string_view key, AutoMeans automatic) {
  register_key(key);
  if (object_ == nullptr) return nullptr;
  const auto found = object_->find(key);
  if (found == object_->end() || found->is_null()) return nullptr;
  if (is_auto(*found)) {
    if (automatic.words.empty()) {
      refuse(ErrorCode::invalid_argument, key,
             "is \"auto\", and there is nothing that Spillway could take it from; write a value");
    }
    if (automatic.note == AutoNote::now) {
      note(key, fmt::format("\"auto\" is {}", automatic.words));
    }
    return nullptr;
  }
  return &*found;
}

bool Section::has(std::string_view key) {
  register_key(key);
  if (object_ == nullptr) return false;
  const auto found = object_->find(key);
  return found != object_->end() && !found->is_null();
}

Section Section::section(std::string_view key) {
  register_key(key);
  const json* object = nullptr;
  if (object_ != nullptr) {
    const auto found = object_->find(key);
    if (found != object_->end() && !found->is_null()) object = &*found;
  }
  if (object != nullptr && !object->is_object()) refuse_value(key, "an object, { ... }");
  return {context_, object, path_of(key)};
}

void Section::refuse_value(std::string_view key, std::string_view allowed) const {
  const auto found = object_->find(key);
  refuse(ErrorCode::invalid_argument, key, fmt::format("is {}; write {}", shown(*found), allowed));
}

std::optional<double> Section::real(std::string_view key, AutoMeans automatic) {
  const json* const value = find(key, automatic);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) refuse_value(key, "a number");
  return value->get<double>();
}

std::optional<double> Section::non_negative(std::string_view key, AutoMeans automatic) {
  const std::optional<double> value = real(key, automatic);
  if (value && *value < 0) refuse_value(key, "a number that is not negative");
  return value;
}

std::optional<std::uint64_t> Section::integer(std::string_view key, std::uint64_t low,
                                              std::uint64_t high, AutoMeans automatic) {
  const json* const value = find(key, automatic);
  if (value == nullptr) return std::nullopt;
  const std::optional<std::uint64_t> number = whole(*value);
  if (!number || *number < low || *number > high) {
    refuse_value(key, fmt::format("a whole number from {} to {}", low, high));
  }
  return number;
}

std::optional<std::uint32_t> Section::integer32(std::string_view key, std::uint32_t low,
                                                AutoMeans automatic) {
  const auto value = integer(key, low, std::numeric_limits<std::int32_t>::max(), automatic);
  return value ? std::optional(static_cast<std::uint32_t>(*value)) : std::nullopt;
}

std::optional<bool> Section::flag(std::string_view key, AutoMeans automatic) {
  const json* const value = find(key, automatic);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse_value(key, "true or false");
  return value->get<bool>();
}

std::optional<std::string> Section::text(std::string_view key) {
  if (!has(key)) return std::nullopt;
  const auto found = object_->find(key);
  if (!found->is_string()) refuse_value(key, "a text, \"...\"");
  return found->get<std::string>();
}

std::optional<Bytes> Section::size(std::string_view key) {
  if (!has(key)) return std::nullopt;
  const auto found = object_->find(key);
  if (const std::optional<std::uint64_t> number = whole(*found)) return Bytes{*number};
  if (!found->is_string()) refuse_value(key, "a size such as \"24GB\", or a number of bytes");
  try {
    return parse_bytes(found->get_ref<const std::string&>());
  } catch (const Error&) {  // said again with the key's name
    refuse_value(key, "a size such as \"512MiB\" or \"24GB\", or a number of bytes");
  }
}

std::optional<std::pair<double, double>> Section::pair(std::string_view key, AutoMeans automatic) {
  const json* const value = find(key, automatic);
  if (value == nullptr) return std::nullopt;
  const bool fits =
      value->is_array() && value->size() == 2 && (*value)[0].is_number() && (*value)[1].is_number();
  if (!fits) refuse_value(key, "an array of two numbers");
  return std::pair{(*value)[0].get<double>(), (*value)[1].get<double>()};
}

std::optional<std::vector<std::string>> Section::texts(std::string_view key) {
  if (!has(key)) return std::nullopt;
  const json& value = *object_->find(key);
  if (value.is_string()) return std::vector{value.get<std::string>()};
  const bool fits = value.is_array() && std::all_of(value.begin(), value.end(),
                                                    [](const json& e) { return e.is_string(); });
  if (!fits) refuse_value(key, "a text or an array of texts");
  return value.get<std::vector<std::string>>();
}

}  // namespace spillway::engine::detail
