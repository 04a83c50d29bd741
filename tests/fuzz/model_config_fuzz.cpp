// Any text as a config.json: an Error, or a model that has a layout and survives being written.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runtime/base/error.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/model/parameter_layout.hpp"

using spillway::model::ModelConfig;
using spillway::model::ModelLayout;
using spillway::model::parse_model_config;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ModelConfig config;
  try {
    config = parse_model_config({reinterpret_cast<const char*>(data), size}, "input");
  } catch (const spillway::Error& error) {
    SPILLWAY_ASSERT(error.code() == spillway::ErrorCode::invalid_argument ||
                    error.code() == spillway::ErrorCode::not_supported);
    return 0;
  }
  // From here on nothing may throw.
  if (config.layers <= 64) {
    const ModelLayout layout = make_layout(config);
    SPILLWAY_ASSERT(layout.parameters().value() < std::uint64_t{1} << 48);
  }
  ModelConfig again = parse_model_config(to_config_json(config, spillway::DType::fp32), "output");
  again.source_json = config.source_json;
  SPILLWAY_ASSERT(again == config);
  return 0;
}
