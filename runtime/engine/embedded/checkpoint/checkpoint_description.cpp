#include "runtime/engine/embedded/checkpoint/checkpoint_description.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/engine/sealed_json.hpp"

namespace spillway::engine {
namespace {

using nlohmann::json;

std::string quoted(const std::string& text) { return json(text).dump(); }

/// Returns a list in an object of the first level, as nlohmann::json::dump(2) writes it.
std::string listed(const std::vector<std::string>& entries) {
  if (entries.empty()) return "[]";
  return fmt::format("[\n    {}\n  ]", fmt::join(entries, ",\n    "));
}

/// Returns the members of a parameter's object, in the order of their keys.
std::vector<std::string> members_of(const CheckpointDescription::Parameter& parameter,
                                    std::string_view colon) {
  std::vector<std::string> members;
  const auto add = [&](std::string_view key, const auto& value) {
    members.push_back(fmt::format("\"{}\"{}{}", key, colon, value));
  };
  if (parameter.block) add("block", *parameter.block);
  add("elements", parameter.elements);
  if (parameter.first) add("first", *parameter.first);
  add("group", parameter.group);
  add("name", quoted(parameter.name));
  return members;
}

/// Takes in the file token by token.
class Reader final : public json::json_sax_t {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path) {}

  CheckpointDescription description;

  bool start_object(std::size_t) override {
    if (place_ == Place::outside) {
      place_ = Place::document;
    } else {
      expect(place_ == Place::parameters);
      place_ = Place::parameter;
      description.parameters.emplace_back();
    }
    return true;
  }
  bool end_object() override {
    place_ = place_ == Place::parameter ? Place::parameters : Place::outside;
    return true;
  }
  bool key(string_t& name) override {
    key_ = name;
    return true;
  }
  bool start_array(std::size_t) override {
    expect(place_ == Place::document);
    if (key_ == "optimizers") {
      place_ = Place::optimizers;
    } else if (key_ == "parameters") {
      place_ = Place::parameters;
    } else {
      expect(key_ == "updates");
      place_ = Place::updates;
    }
    return true;
  }
  bool end_array() override {
    place_ = Place::document;
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::optimizers) {
      description.optimizers.push_back(value);
    } else if (place_ == Place::document && key_ == "dtype") {
      description.dtype = value;
    } else if (place_ == Place::document && key_ == "state_format") {
      description.state_format = value;
    } else if (place_ == Place::parameter && key_ == "name") {
      description.parameters.back().name = value;
    } else {
      expect(place_ == Place::document && key_ == "xxh3");
    }
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::updates) {
      description.updates.push_back(value);
    } else if (place_ == Place::document && key_ == "tile_parameters") {
      description.tile_parameters = value;
    } else if (place_ == Place::parameter && key_ == "elements") {
      description.parameters.back().elements = value;
    } else if (place_ == Place::parameter && key_ == "group") {
      description.parameters.back().group = value;
    } else if (place_ == Place::parameter && key_ == "block") {
      description.parameters.back().block = value;
    } else if (place_ == Place::parameter && key_ == "first") {
      description.parameters.back().first = value;
    } else {
      expect(place_ == Place::document && key_ == "format");
    }
    return true;
  }

  bool null() override { return refused(); }
  bool boolean(bool) override { return refused(); }
  bool number_integer(number_integer_t) override { return refused(); }
  bool number_float(number_float_t, const string_t&) override { return refused(); }
  bool binary(binary_t&) override { return refused(); }
  bool parse_error(std::size_t, const std::string&, const json::exception&) override {
    return refused();
  }

 private:
  enum class Place : std::uint8_t { outside, document, optimizers, parameters, parameter, updates };

  void expect(bool condition) const {
    check(condition, ErrorCode::corrupt_data,
          fmt::format("{}: what follows \"{}\" is not what a checkpoint has there; take another "
                      "checkpoint",
                      path_.string(), key_));
  }
  bool refused() const {
    expect(/*condition=*/false);
    return false;
  }

  const std::filesystem::path& path_;
  std::string key_;
  Place place_ = Place::outside;
};

}  // namespace

std::string to_text(const CheckpointDescription::Parameter& parameter) {
  return fmt::format("{{{}}}", fmt::join(members_of(parameter, ":"), ","));
}

std::string to_text(const std::filesystem::path& path, const CheckpointDescription& description) {
  std::vector<std::string> optimizers;
  optimizers.reserve(description.optimizers.size());
  for (const std::string& name : description.optimizers) optimizers.push_back(quoted(name));
  std::vector<std::string> parameters;
  parameters.reserve(description.parameters.size());
  for (const CheckpointDescription::Parameter& parameter : description.parameters) {
    parameters.push_back(
        fmt::format("{{\n      {}\n    }}", fmt::join(members_of(parameter, ": "), ",\n      ")));
  }
  std::string text =
      fmt::format(R"({{
  "dtype": {},
  "format": {},
  "optimizers": {},
  "parameters": {},
  "state_format": {},
  "tile_parameters": {})",
                  quoted(description.dtype), kSealedFormat, listed(optimizers), listed(parameters),
                  quoted(description.state_format), description.tile_parameters);
  if (!description.updates.empty()) {
    text +=
        fmt::format(",\n  \"updates\": [\n    {}\n  ]", fmt::join(description.updates, ",\n    "));
  }
  return sealed_text(path, text + "\n}");
}

CheckpointDescription read_description(const std::filesystem::path& path) {
  const std::string text = read_sealed_text(path);
  Reader reader(path);
  json::sax_parse(text, &reader);
  return std::move(reader.description);
}

}  // namespace spillway::engine
