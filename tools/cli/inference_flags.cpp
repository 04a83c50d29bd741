#include "tools/cli/inference_flags.hpp"

#include "runtime/engine/options_table.hpp"

namespace spillway::cli {

void InferenceFlags::add_machine_to(CLI::App& command) {
  add_device_flag(command, device);
  memory.add_to(command);
  command.add_option("--compute-threads", compute_threads,
                     engine::help_of("spillway.compute_threads"));
}

engine::InferenceOptions InferenceFlags::options(ModelSource& from, std::uint32_t batch,
                                                 std::uint32_t context) const {
  return {.compute = from.compute(),
          .batch = batch,
          .context = context,
          .compute_threads = compute_threads,
          .device = device,
          .trained_on = from.trained_on(),
          .device_memory = memory.device_bytes(),
          .host_memory = memory.host_bytes(),
          .source_bytes = from.run() != nullptr ? from.run()->reading_bytes() : Bytes{}};
}

}  // namespace spillway::cli
