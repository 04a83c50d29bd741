#include <algorithm>

#include "runtime/config/detail/config_file.hpp"

namespace spillway::config::detail {
namespace {

using nlohmann::json;

bool is_section(const std::string& path) {
  return std::ranges::any_of(options_table(), [&](const Option& option) {
    return option.section == path || option.section.starts_with(path + ".");
  });
}

/// JSON has no comments, so people write them as keys: {"_comment": "..."}.
bool is_comment(std::string_view key) { return key.starts_with('_'); }

/// True where `path` is a key of the object of `key`, or one on the way to it.
bool is_inner(const ForeignKey& key, const std::string& path) {
  return std::ranges::any_of(inner_keys(key), [&](std::string_view known) {
    if (known.ends_with('*') && path.starts_with(known.substr(0, known.size() - 1))) return true;
    return known == path || known.starts_with(path + ".");
  });
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

void ConfigFile::answer_foreign(const ForeignKey& key, const json& value) {
  const std::string path = join_path(key.section, key.key);
  const bool given = !value.is_null() && value != "auto";
  switch (key.answer) {
    case Answer::note: return note(path, fmt::format("not needed: {}", key.reason));
    case Answer::note_when_on:
      if (given && is_on(value)) note(path, key.reason);
      return;
    case Answer::refuse_when_on:
      if (given && is_on(value)) refuse(ErrorCode::not_supported, path, key.reason);
      return;
    case Answer::refuse_when_off:
      if (value == false) refuse(ErrorCode::not_supported, path, key.reason);
      return;
    case Answer::refuse:
      if (!value.is_null()) refuse(ErrorCode::invalid_argument, path, key.reason);
      return;
  }
}

void ConfigFile::answer_inner(const ForeignKey& key, const json& object,
                              const std::string& inside) {
  if (!object.is_object()) return;
  for (const auto& [name, value] : object.items()) {
    if (is_comment(name)) continue;
    const std::string path = join_path(inside, name);
    if (is_inner(key, path)) {
      answer_inner(key, value, path);
    } else {
      const std::string whole = join_path(key.section, key.key);
      unknown_.emplace_back(inside.empty() ? whole : join_path(whole, inside), name);
    }
  }
}

void ConfigFile::answer_keys(const json& object, const std::string& section) {
  for (const auto& [key, value] : object.items()) {
    if (is_comment(key)) continue;
    const std::string path = join_path(section, key);
    const bool is_path = key.find('.') != std::string::npos;  // "a.b" is no b within a
    if (!is_path && find_option(path) != nullptr) continue;
    const auto foreign = std::ranges::find_if(foreign_keys(), [&](const ForeignKey& each) {
      return each.section == section && each.key == key;
    });
    if (!is_path && is_section(path)) {
      if (value.is_object()) {
        answer_keys(value, path);
      } else if (!value.is_null()) {
        attempt([&] {
          refuse(ErrorCode::invalid_argument, path,
                 fmt::format("is {}; write an object, {{ ... }}", shown(value)));
        });
      }
    } else if (foreign != foreign_keys().end()) {
      attempt([&] { answer_foreign(*foreign, value); });
      answer_inner(*foreign, value, "");
    } else {
      unknown_.emplace_back(section, key);
    }
  }
}

}  // namespace spillway::config::detail
