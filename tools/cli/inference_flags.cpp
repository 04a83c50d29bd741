#include "tools/cli/inference_flags.hpp"

namespace spillway::cli {

engine::InferenceOptions InferenceFlags::options(ModelSource& from, engine::InferenceUse use,
                                                 std::uint32_t batch, std::uint32_t context) const {
  const config::TrainOptions given = machine.options();
  return {.use = use,
          .compute = from.compute(),
          .batch = batch,
          .context = context,
          .compute_threads = given.compute_threads,
          .device = given.device,
          .trained_on = from.trained_on(),
          .device_memory = given.device_memory,
          .host_memory = given.host_memory,
          .source_bytes = from.run() != nullptr ? from.run()->saved().reading_bytes() : Bytes{}};
}

}  // namespace spillway::cli
