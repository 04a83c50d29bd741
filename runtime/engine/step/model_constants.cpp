#include "runtime/engine/step/model_constants.hpp"

#include <cstring>
#include <vector>

namespace spillway::engine {

ModelConstants::ModelConstants(model::Transformer& transformer, offload::DeviceBackend& backend,
                               offload::Stream& stream) {
  const std::vector<float> constants = transformer.constants();
  if (constants.empty()) return;
  const Bytes bytes = transformer.constant_bytes();
  memory_ = {backend, bytes};
  const offload::PinnedMemory staging(backend, bytes);
  std::memcpy(staging.host().data(), constants.data(), bytes.value());
  stream.upload(memory_.device(), staging.host());
  stream.synchronize();
  transformer.bind_constants(memory_.device().as<const float>());
}

}  // namespace spillway::engine
