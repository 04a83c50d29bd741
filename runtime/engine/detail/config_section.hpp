// Typed access to one object of a configuration. Asking for a key makes it known; what nobody asked
// for is refused at the end, with the nearest key that somebody did. Used while parsing only.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/base/units.hpp"
#include "runtime/engine/config_keys.hpp"

namespace spillway::engine::detail {

/// JSON with `//`, `#` and `/* */` comments, no key twice in an object; the root is an object.
/// Throws `Error{invalid_argument}` with line and column of `text`.
[[nodiscard]] nlohmann::json parse_commented_json(std::string_view text, std::string_view origin);

/// A value as it may stand in a message: containers by kind, the rest in full but for its length.
[[nodiscard]] std::string shown(const nlohmann::json& value);

/// "" + "fp16" = "fp16"; "fp16" + "enabled" = "fp16.enabled".
[[nodiscard]] std::string join_path(std::string_view section, std::string_view key);

class Section;

/// What all sections of one configuration share.
class ConfigContext {
 public:
  ConfigContext(std::string_view origin, std::vector<std::string>& notes)
      : origin_(origin), notes_(notes) {}

  [[noreturn]] void refuse(ErrorCode code, const std::string& path, std::string_view what) const;
  void note(const std::string& path, std::string_view what);

  /// Runs `read`, which reads what lies at `path` ("" for keys at the top), and keeps its error for
  /// the end: a file is refused for all that is wrong with it at once.
  template <class Read>
  void attempt(std::string_view path, const Read& read) {
    try {
      read();
    } catch (const Error& error) {
      keep(path, error);
    }
  }
  /// Throws what was kept, and every key that nobody knows; one error alone as it was.
  void finish();

 private:
  friend class Section;
  struct Known {
    std::string section;
    std::string_view key;
  };
  void keep(std::string_view path, const Error& error);
  void add_unknown_keys();
  [[nodiscard]] bool is_known(const std::string& section, const std::string& key) const;
  [[nodiscard]] std::string hint(const std::string& section, const std::string& key) const;

  std::string origin_;
  std::vector<std::string>& notes_;
  std::vector<Known> known_;
  std::vector<std::pair<std::string, const nlohmann::json*>> objects_;
  std::vector<Error> errors_;
  std::vector<std::string> broken_;  ///< sections that were not read to their end
};

/// When an "auto" is noted: as it is read, or where its value is chosen.
enum class AutoNote : std::uint8_t { now, later };

/// What an "auto" becomes, in words for a note; empty: it is refused by name.
struct AutoMeans {
  std::string_view words;
  AutoNote note = AutoNote::now;
};

/// Every reader returns nothing when the key is absent, null or a resolved "auto", and throws
/// `Error{invalid_argument}` naming path, value and what is allowed otherwise.
class Section {
 public:
  /// `object` is null when the section is absent: its keys are known all the same.
  Section(ConfigContext& context, const nlohmann::json* object, std::string path);

  [[nodiscard]] bool present() const { return object_ != nullptr; }
  /// Present and not null. Makes `key` known.
  [[nodiscard]] bool has(std::string_view key);
  [[nodiscard]] Section section(std::string_view key);

  [[nodiscard]] std::optional<double> real(std::string_view key, AutoMeans automatic = {});
  [[nodiscard]] std::optional<double> non_negative(std::string_view key, AutoMeans automatic = {});
  [[nodiscard]] std::optional<std::uint64_t> integer(std::string_view key, std::uint64_t low,
                                                     std::uint64_t high, AutoMeans automatic = {});
  [[nodiscard]] std::optional<std::uint32_t> integer32(std::string_view key, std::uint32_t low,
                                                       AutoMeans automatic = {});
  [[nodiscard]] std::optional<bool> flag(std::string_view key, AutoMeans automatic = {});
  [[nodiscard]] std::optional<std::string> text(std::string_view key);
  /// A number of bytes, or text that `parse_bytes` reads.
  [[nodiscard]] std::optional<Bytes> size(std::string_view key);
  /// Two numbers.
  [[nodiscard]] std::optional<std::pair<double, double>> pair(std::string_view key,
                                                              AutoMeans automatic = {});
  /// One text or an array of texts.
  [[nodiscard]] std::optional<std::vector<std::string>> texts(std::string_view key);

  template <class Enum>
  [[nodiscard]] std::optional<Enum> choice(std::string_view key) {
    const std::optional<std::string> name = text(key);
    if (!name) return std::nullopt;
    std::string allowed;
    for (const Named<Enum>& each : names_of<Enum>()) {
      if (*name == each.name) return each.value;
      allowed += fmt::format("{}{}", allowed.empty() ? "" : ", ", each.name);
    }
    refuse_value(key, fmt::format("one of {}", allowed));
  }

  [[nodiscard]] std::string path_of(std::string_view key) const { return join_path(path_, key); }
  void note(std::string_view key, std::string_view what) { context_.note(path_of(key), what); }
  [[noreturn]] void refuse(ErrorCode code, std::string_view key, std::string_view what) const {
    context_.refuse(code, path_of(key), what);
  }
  /// "... is VALUE; write ALLOWED".
  [[noreturn]] void refuse_value(std::string_view key, std::string_view allowed) const;

 private:
  /// The value, or null when it is absent, null or a resolved "auto".
  const nlohmann::json* find(std::string_view key, AutoMeans automatic);
  void register_key(std::string_view key);
  void take_unneeded();
  void take_off_only();

  ConfigContext& context_;
  const nlohmann::json* object_;
  std::string path_;
};

/// Replaces `target` when there is a value.
template <class Target, class Value>
void assign(Target& target, std::optional<Value>&& value) {
  if (value) target = std::move(*value);
}

}  // namespace spillway::engine::detail
