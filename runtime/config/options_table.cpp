#include "runtime/config/options_table.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/base/json.hpp"
#include "runtime/config/detail/option_builders.hpp"

namespace spillway::config {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

std::vector<Option> make_table() {
  std::vector<Option> table;
  detail::add_batch_and_precision(table);
  detail::add_optimizer(table);
  detail::add_scheduler(table);
  detail::add_homes(table);
  detail::add_spillway(table);
  return table;
}

ordered_json::json_pointer pointer_to(const std::string& path) {
  std::string pointer = "/" + path;
  std::ranges::replace(pointer, '.', '/');
  return ordered_json::json_pointer(pointer);
}

/// A flag's text as a configuration would have it: a number where it is one that JSON can hold.
json json_of_text(const std::string& text) {
  const json value = json_or_null(text);
  const bool exact = !value.is_number_float() || text.find_first_of(".eE") != std::string::npos;
  return value.is_number() && exact ? value : json(text);
}

const Option& option_at(std::string_view path) {
  const Option* const option = find_option(path);
  SPILLWAY_ASSERT(option != nullptr);
  return *option;
}

}  // namespace

std::string detail::join_path(std::string_view section, std::string_view key) {
  return section.empty() ? std::string(key) : fmt::format("{}.{}", section, key);
}

Option& detail::Rows::own(const Words& words, const Domain& domain, decltype(Option::read) read,
                          decltype(Option::value) value) {
  Option& row = table_.emplace_back(alike_);
  row.key = words.key;
  row.meaning = words.meaning;
  row.standard = words.standard;
  row.domain = domain;
  row.read = read;
  row.value = value;
  return row;
}

std::string detail::Rows::shown_default(const Option& row) {
  const json value = row.value(row, TrainOptions{});
  return value.is_string() ? value.get<std::string>() : shown(value);
}

std::string Option::path() const { return detail::join_path(section, key); }

std::span<const Option> options_table() {
  static const std::vector<Option> table = make_table();
  return table;
}

const Option* find_option(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  const bool top = dot == std::string_view::npos;
  const std::string_view section = top ? "" : path.substr(0, dot);
  const std::string_view key = top ? path : path.substr(dot + 1);
  for (const Option& option : options_table()) {
    if (option.key == key && option.section == section) return &option;
  }
  return nullptr;
}

json value_of(const Option& option, const TrainOptions& options) {
  const bool says = option.value != nullptr && (!option.applies || option.applies(options));
  return says ? option.value(option, options) : json();
}

std::string to_config_json(const TrainOptions& options) {
  ordered_json file;
  for (const Option& option : options_table()) {
    const json value = value_of(option, options);
    if (!value.is_null()) file[pointer_to(option.path())] = value;
  }
  try {
    return file.dump(2) + "\n";
  } catch (const ordered_json::exception&) {  // JSON text is UTF-8; a path need not be
    throw Error(ErrorCode::invalid_argument,
                "spillway.nvme or output_path: a path is not UTF-8 and cannot be written to "
                "config.json; rename the directory");
  }
}

json recorded_options(const TrainOptions& options) {
  TrainOptions resolved = options;
  resolved.device = options.device.value_or(DeviceKind::host);
  json recorded = json::object();
  for (const Option& option : options_table()) {
    if (option.part == Part::free || (option.counts && !option.counts(resolved))) continue;
    json value = value_of(option, resolved);
    if (!value.is_null()) recorded[option.path()] = std::move(value);
  }
  return recorded;
}

std::string help_of(std::string_view path) {
  const Option& option = option_at(path);
  return fmt::format("{} ({}; default {}; key {})", option.meaning,
                     option.domain.kind == Kind::paths ? "a path, which may be repeated"
                                                       : option.domain.in_words(),
                     option.standard, path);
}

void set_option(TrainOptions& options, std::string_view path, std::string_view flag,
                const std::vector<std::string>& texts) {
  const Option& option = option_at(path);
  json file;
  file[json::json_pointer(pointer_to(option.path()).to_string())] =
      option.domain.kind == Kind::paths ? json(texts) : json_of_text(texts.back());
  std::vector<std::string> notes;
  detail::ConfigFile given(std::move(file), flag, notes);
  option.read(given, option, options);
}

}  // namespace spillway::config
