#include "tools/cli/device_flag.hpp"

#include <map>
#include <string>

#include "runtime/engine/config_keys.hpp"
#include "runtime/engine/options_table.hpp"

namespace spillway::cli {
namespace {

std::optional<Bytes> bytes_of(const std::string& size) {
  return size.empty() ? std::nullopt : std::optional(parse_bytes(size));
}

}  // namespace

void add_device_flag(CLI::App& command, std::optional<engine::DeviceKind>& device) {
  std::map<std::string, engine::DeviceKind> names;
  for (const auto& [name, kind] : engine::names_of<engine::DeviceKind>()) names.emplace(name, kind);
  command.add_option("--device", device, engine::help_of("spillway.device"))
      ->transform(CLI::CheckedTransformer(names).description(""))
      ->type_name("DEVICE")
      ->envname("SPILLWAY_DEVICE");
}

void MemoryFlags::add_to(CLI::App& command) {
  command.add_option("--device-memory", device, engine::help_of("spillway.device_memory"));
  command.add_option("--host-memory", host, engine::help_of("spillway.host_memory"));
}

std::optional<Bytes> MemoryFlags::device_bytes() const { return bytes_of(device); }

std::optional<Bytes> MemoryFlags::host_bytes() const { return bytes_of(host); }

}  // namespace spillway::cli
