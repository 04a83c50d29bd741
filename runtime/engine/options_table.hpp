// The table of options: every key that a configuration may say, its type and range, its default,
// what it means and whether a run may change it. The section `spillway` is read and written by it,
// ranges are checked by it, a resumed run is compared by it, and docs/configuration.md is printed
// from it. Built once, constant after; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "runtime/engine/train_options.hpp"

namespace spillway::engine {

namespace detail {
class Section;
}

/// What an option belongs to, which says whether a resumed run may change it.
enum class Part : std::uint8_t {
  mathematics,  ///< other values give other bits: a change is refused by name
  layout,       ///< the same bits, kept in another way on disk: a change is refused by name
  free,         ///< may differ at every start
};

struct Option {
  std::string_view section;  ///< its path; "" at the top
  std::string_view key;
  Part part;
  std::string type;           ///< with its range, or its names
  std::string_view standard;  ///< the default, in words where it is no value
  std::string_view meaning;
  /// True where the option has a say, for these options; null: always.
  bool (*counts)(const TrainOptions&) = nullptr;

  // Of options that are members: how the table reads, checks and writes them. Others are read and
  // written by the code of their section.
  std::uint64_t low = 0;
  std::uint64_t high = 0;  ///< of whole numbers; 0: not checked here
  std::string_view automatic{};
  void (*read)(detail::Section&, const Option&, TrainOptions&) = nullptr;
  void (*write)(nlohmann::ordered_json&, const Option&, const TrainOptions&) = nullptr;

  [[nodiscard]] std::string path() const;
};

/// Every option, by section, in the order of the guide.
[[nodiscard]] std::span<const Option> options_table();
/// The option of a path such as "optimizer.params.lr"; null if the table has none.
[[nodiscard]] const Option* find_option(std::string_view path);

/// What of `options` a resumed run must share, as {path: value}: a positive list, taken from the
/// table. Every path of `to_config_json` must be in the table.
[[nodiscard]] nlohmann::json recorded_options(const TrainOptions& options);

}  // namespace spillway::engine
