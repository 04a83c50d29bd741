// One configuration while it is read: its JSON, the notes that reading gives, and everything that
// is wrong with it, which is told at once. Used while parsing only.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/config/keys.hpp"
#include "runtime/config/options_table.hpp"

namespace spillway::config::detail {

/// Reads JSON with `//`, `#` and `/* */` comments, no key twice in an object; the root is an
/// object. Throws `Error{invalid_argument}` with line and column of `text`.
[[nodiscard]] nlohmann::json parse_commented_json(std::string_view text, std::string_view origin);

/// Returns a value as it may stand in a message: containers by kind, the rest in full but for its
/// length.
[[nodiscard]] std::string shown(const nlohmann::json& value);

/// Joins names: "" + "fp16" = "fp16"; "fp16" + "enabled" = "fp16.enabled".
[[nodiscard]] std::string join_path(std::string_view section, std::string_view key);

class ConfigFile {
 public:
  ConfigFile(nlohmann::json root, std::string_view origin, std::vector<std::string>& notes)
      : root_(std::move(root)), origin_(origin), notes_(notes) {}

  /// Value at `path`; null where it is absent or null.
  [[nodiscard]] const nlohmann::json* find(std::string_view path) const;
  [[nodiscard]] bool has(std::string_view path) const { return find(path) != nullptr; }
  [[nodiscard]] bool is_auto(const Option& option) const;
  /// Returns the value of `option`, which is in its domain; null where it is absent, null or an
  /// "auto" that stands for what `options` have. Throws `Error{invalid_argument}` for anything
  /// else.
  [[nodiscard]] const nlohmann::json* value(const Option& option, const TrainOptions& options);

  void note(const std::string& path, std::string_view what);
  [[noreturn]] void refuse(ErrorCode code, const std::string& path, std::string_view what) const;
  /// Throws "... is VALUE; write ALLOWED".
  [[noreturn]] void refuse_value(const Option& option, std::string_view allowed) const;

  /// Runs `read` and keeps its error for the end.
  template <class Read>
  void attempt(const Read& read) {
    try {
      read();
    } catch (const Error& error) {
      errors_.push_back(error);
    }
  }
  /// Answers keys that are no options, then throws the kept errors; a single one as it was.
  void finish(const TrainOptions& options);

 private:
  void answer_keys(const nlohmann::json& object, const std::string& section);
  void answer_foreign(const ForeignKey& key, const nlohmann::json& value);
  void answer_inner(const ForeignKey& key, const nlohmann::json& object, const std::string& inside);

  nlohmann::json root_;
  std::string origin_;
  std::vector<std::string>& notes_;
  std::vector<Error> errors_;
  std::vector<std::pair<std::string, std::string>> unknown_;  ///< section and key
};

}  // namespace spillway::config::detail
