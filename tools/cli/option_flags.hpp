// Flags that set options of the table of options, and say and check of them what it does.
#pragma once

#include <list>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/train_options.hpp"
#include "tools/cli/command_line.hpp"

namespace spillway::cli {

class OptionFlags {
 public:
  /// Adds the flag that sets `spillway.KEY`: "device_memory" is --device-memory. This must live as
  /// long as `command`.
  Argument add(Command command, std::string_view key);
  /// Adds --device, --device-memory, --host-memory and --compute-threads: what a model runs on.
  void add_compute(Command command);
  /// Sets what was given. Throws `Error{invalid_argument}`, which names the flag.
  void apply(config::TrainOptions& options) const;
  /// Returns the defaults with what was given.
  [[nodiscard]] config::TrainOptions options() const;

 private:
  struct Flag {
    std::string name;
    std::string path;
    std::vector<std::string> texts;
  };
  std::list<Flag> flags_;  // CLI11 writes to where they are
};

}  // namespace spillway::cli
