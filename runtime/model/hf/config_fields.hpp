// Reads the fields of an HF config.json one by one and refuses, in the end, those nobody read.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace spillway::model::detail {

/// Views one JSON object. Every getter marks its field as read; `null` counts as absent, as it does
/// in transformers. Errors name the file, the field and the value.
class FieldReader {
 public:
  /// `object` must outlive this. `path` is empty, or names the object in messages: "rope_scaling.".
  FieldReader(const nlohmann::ordered_json& object, std::string_view origin, std::string path);

  [[nodiscard]] std::optional<std::uint32_t> count(std::string_view name);
  [[nodiscard]] std::uint32_t required_count(std::string_view name);
  [[nodiscard]] std::optional<double> number(std::string_view name);
  [[nodiscard]] bool boolean(std::string_view name, bool absent);
  [[nodiscard]] std::optional<std::string> text(std::string_view name);
  /// Returns the value of any type, or nullptr; marks it as read.
  [[nodiscard]] const nlohmann::ordered_json* any(std::string_view name);
  /// Whether the field is there, `null` or not. Does not mark it.
  [[nodiscard]] bool mentions(std::string_view name) const;

  /// Refuses the field with `Error{not_supported}` unless it is absent or equals `supported`.
  void only(std::string_view name, const nlohmann::ordered_json& supported,
            std::string_view remedy);
  /// Throws `Error{not_supported}` naming field and value.
  [[noreturn]] void refuse(std::string_view name, const nlohmann::ordered_json& value,
                           std::string_view remedy) const;
  /// Throws `Error{invalid_argument}` naming field and value.
  [[noreturn]] void reject(std::string_view name, const nlohmann::ordered_json& value,
                           std::string_view rule) const;

  /// Refuses every field that was not read, is not null and is not known to leave the mathematics
  /// as it is (token ids, dropout, caches, names, generation settings).
  void finish(bool allow_harmless);

 private:
  const nlohmann::ordered_json& object_;
  std::string_view origin_;
  std::string path_;
  std::set<std::string, std::less<>> read_;
};

/// Whether a field of any HF configuration never changes the logits of a causal model.
[[nodiscard]] bool is_harmless_field(std::string_view name);

}  // namespace spillway::model::detail
