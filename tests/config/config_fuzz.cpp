// Any text is a configuration or is refused by an Error; a valid one survives being written.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "runtime/base/error.hpp"
#include "runtime/config/train_options.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace config = spillway::config;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  config::TrainOptions options;
  try {
    options = config::parse_train_config(text, "fuzz").options;
    config::validate(options);
  } catch (const spillway::Error& error) {
    const bool expected = error.code() == spillway::ErrorCode::invalid_argument ||
                          error.code() == spillway::ErrorCode::not_supported;
    if (!expected) std::abort();
    return 0;
  }
  const std::string written = config::to_config_json(options);
  if (config::to_config_json(config::parse_train_config(written, "again").options) != written) {
    std::abort();
  }
  return 0;
}
