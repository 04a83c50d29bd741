// The flag that chooses where FWD-BWD runs, as several commands have it.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>

#include "runtime/engine/train_options.hpp"

namespace spillway::cli {

/// --device host|cuda; `device` stays absent without it. It must live as long as `command`.
void add_device_flag(CLI::App& command, std::optional<engine::DeviceKind>& device);

}  // namespace spillway::cli
