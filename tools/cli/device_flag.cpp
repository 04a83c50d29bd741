#include "tools/cli/device_flag.hpp"

#include <map>
#include <string>

namespace spillway::cli {

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

}  // namespace spillway::cli
