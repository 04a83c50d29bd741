// The flags that say where FWD-BWD runs and how much memory it may take, as several commands have
// them.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "runtime/engine/train_options.hpp"

namespace spillway::cli {

/// --device host|cuda; `device` stays absent without it. It must live as long as `command`.
void add_device_flag(CLI::App& command, std::optional<engine::DeviceKind>& device);

/// --device-memory and --host-memory; empty where they are not given.
struct MemoryFlags {
  std::string device, host;

  /// This must live as long as `command`.
  void add_to(CLI::App& command);
  [[nodiscard]] std::optional<Bytes> device_bytes() const;
  [[nodiscard]] std::optional<Bytes> host_bytes() const;
};

}  // namespace spillway::cli
