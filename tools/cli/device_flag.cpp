#include "tools/cli/device_flag.hpp"

#include <map>
#include <string>

namespace spillway::cli {
namespace {

std::optional<Bytes> bytes_of(const std::string& size) {
  return size.empty() ? std::nullopt : std::optional(parse_bytes(size));
}

}  // namespace

void add_device_flag(CLI::App& command, std::optional<engine::DeviceKind>& device) {
  const std::map<std::string, engine::DeviceKind> names{{"host", engine::DeviceKind::host},
                                                        {"cuda", engine::DeviceKind::cuda}};
  command
      .add_option("--device", device,
                  "Where FWD-BWD runs: host or cuda; default: cuda where a GPU is usable")
      ->transform(CLI::CheckedTransformer(names).description(""))
      ->type_name("DEVICE")
      ->envname("SPILLWAY_DEVICE");
}

void MemoryFlags::add_to(CLI::App& command) {
  command.add_option("--device-memory", device, "Device memory budget, e.g. 512MiB");
  command.add_option("--host-memory", host, "Host memory budget, e.g. 24GB");
}

std::optional<Bytes> MemoryFlags::device_bytes() const { return bytes_of(device); }

std::optional<Bytes> MemoryFlags::host_bytes() const { return bytes_of(host); }

}  // namespace spillway::cli
