// The table of options: every key that a configuration may say, its values, its default, what it
// means and whether a run may change it. Configurations are read and written by it, values are
// checked by it, a resumed run is compared by it, and docs/configuration.md and the help of flags
// are printed from it. Built once, constant after; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/train_options.hpp"

namespace spillway::config {

namespace detail {
class ConfigFile;
}

/// What an option belongs to, which says whether a resumed run may change it.
enum class Part : std::uint8_t {
  mathematics,  ///< other values give other bits: a change is refused by name
  layout,       ///< the same bits, kept in another way on disk: a change is refused by name
  free,         ///< may differ at every start
};

enum class Kind : std::uint8_t {
  flag,
  whole,
  number,
  rate,  ///< a number, or what DeepSpeed's schedules take: an array of one for each group
  pair,
  wholes,
  name,    ///< one of some
  folder,  ///< a file name without its path
  path,
  paths,
  size,
};

/// Values that an option may have.
struct Domain {
  Kind kind = Kind::flag;
  double low = 0;  ///< of numbers; the whole ones among the limits are exact
  double high = 0;
  bool above = false;                     ///< `low` itself is not allowed
  bool below = false;                     ///< `high` itself is not allowed
  std::vector<std::string_view> names{};  ///< of Kind::name

  /// Returns words such as "a whole number from 1 to 100", "one of log, linear".
  [[nodiscard]] std::string in_words() const;
  /// Fault of `value`, such as "is 0" or "holds 2"; empty where it is allowed.
  [[nodiscard]] std::string fault_of(const nlohmann::json& value) const;
};

/// What an "auto" becomes; empty: it is refused by name.
namespace automatic {
inline constexpr std::string_view kDefault = "the default";  ///< a note says its value
inline constexpr std::string_view kChosenLater = "later";    ///< noted where it is chosen
}  // namespace automatic

struct Option {
  using Condition = bool (*)(const TrainOptions&);

  std::string_view section{};  ///< its path; "" at the top
  std::string_view key{};
  Part part = Part::mathematics;
  Domain domain{};
  std::string standard{};  ///< the default, in words where it is no value
  std::string_view meaning{};
  Condition applies = nullptr;   ///< where the key is used at all; null: always
  Condition counts = nullptr;    ///< where it has a say in the mathematics; null: always
  std::string_view automatic{};  ///< what an "auto" becomes, in words
  std::string_view missing{};    ///< what to do where it is missing; empty: it may be

  void (*read)(detail::ConfigFile&, const Option&, TrainOptions&) = nullptr;
  /// Null where the options do not say it, or say it under another key.
  nlohmann::json (*value)(const Option&, const TrainOptions&) = nullptr;

  [[nodiscard]] std::string path() const;
};

/// Returns every option, by section, in the order of the guide, which is that of reading.
[[nodiscard]] std::span<const Option> options_table();
/// Returns the option of a path such as "optimizer.params.lr"; null if the table has none.
[[nodiscard]] const Option* find_option(std::string_view path);
/// Returns the value that `options` give `option`, where it applies; null elsewhere.
[[nodiscard]] nlohmann::json value_of(const Option& option, const TrainOptions& options);

/// Options that a resumed run must share, as {path: value}: a positive list, taken from the table.
[[nodiscard]] nlohmann::json recorded_options(const TrainOptions& options);
/// Text of --help for a flag that sets the option of `path`, which is in the table.
[[nodiscard]] std::string help_of(std::string_view path);
/// Sets the option of `path` as a configuration with these texts would; `flag` names it in errors.
void set_option(TrainOptions& options, std::string_view path, std::string_view flag,
                const std::vector<std::string>& texts);
}  // namespace spillway::config
