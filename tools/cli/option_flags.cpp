#include "tools/cli/option_flags.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/config/options_table.hpp"

namespace spillway::cli {

Argument OptionFlags::add(Command command, std::string_view key) {
  Flag& flag = flags_.emplace_back(fmt::format("--{}", key), fmt::format("spillway.{}", key));
  std::ranges::replace(flag.name, '_', '-');
  Argument added = command.add_option(flag.name, flag.texts, config::help_of(flag.path));
  switch (config::find_option(flag.path)->domain.kind) {
    case config::Kind::paths: return added;
    case config::Kind::whole: return added.single().type_name("UINT");
    default: return added.single();
  }
}

void OptionFlags::add_compute(Command command) {
  add(command, "device").environment("SPILLWAY_DEVICE");
  add(command, "device_memory");
  add(command, "host_memory");
  add(command, "compute_threads");
}

void OptionFlags::apply(config::TrainOptions& options) const {
  for (const Flag& flag : flags_) {
    if (!flag.texts.empty()) config::set_option(options, flag.path, flag.name, flag.texts);
  }
}

config::TrainOptions OptionFlags::options() const {
  config::TrainOptions options;
  apply(options);
  return options;
}

}  // namespace spillway::cli
