// ModelConstants: a transformer's constant tables in device memory, for as long as it runs.
#pragma once

#include "offload/device_backend.hpp"
#include "offload/memory.hpp"
#include "runtime/model/transformer.hpp"

namespace spillway::engine {

class ModelConstants {
 public:
  ModelConstants() = default;
  /// Uploads them and binds them to `transformer`; the host copy lasts no longer than this call.
  ModelConstants(model::Transformer& transformer, offload::DeviceBackend& backend,
                 offload::Stream& stream);

 private:
  offload::DeviceMemory memory_;
};

}  // namespace spillway::engine
