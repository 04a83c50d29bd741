// The flags that `train` and `plan` share, and how they override the configuration file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/config/train_options.hpp"
#include "runtime/model/model_config.hpp"
#include "tools/cli/command_line.hpp"
#include "tools/cli/option_flags.hpp"
#include "tools/cli/plan_making.hpp"

namespace spillway::cli {

struct TrainFlags {
  std::filesystem::path config;
  std::filesystem::path model;  ///< config.json or a name of bench/model_shapes, or empty
  std::uint32_t layers = 0;     ///< instead of the model's; 0: the model's
  std::filesystem::path from;   ///< HF directory, run or name of a hub's model, or empty
  std::filesystem::path run;
  OptionFlags set;  ///< of the configuration's section spillway
  std::filesystem::path profile = default_profile();

  void add_to(Command command);
  /// Adds only --model NAME_OR_PATH and --layers.
  Argument add_model_to(Command command);
  /// Adds only what says where a run lives and what it may take.
  void add_machine_to(Command command);
  /// Returns the configuration, or the defaults where there is none, with the flags applied, for
  /// one of `ranks`, and its notes.
  [[nodiscard]] config::ParsedConfig parsed(std::uint32_t ranks = 1) const;
  /// Returns the options of that; the notes go to stderr.
  [[nodiscard]] config::TrainOptions options() const;
  /// Returns what --from names: a path, or the snapshot of a hub's model in the local cache.
  [[nodiscard]] std::optional<std::filesystem::path> checkpoint() const;
  /// Returns that from --model or --from; absent when neither is given.
  [[nodiscard]] std::optional<model::ModelConfig> model_config() const;
};

/// Returns the notes of a configuration as lines. Unless verbose, one line counts the keys that
/// are not needed: what is chosen or ignored is always said.
[[nodiscard]] std::vector<std::string> note_lines(const std::vector<std::string>& notes,
                                                  bool verbose);

}  // namespace spillway::cli
