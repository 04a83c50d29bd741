// What `bench gpu` measures where nobody says.
#include "tools/bench/gpu_bench.hpp"

namespace spillway::bench {

GpuCase default_case(config::DeviceKind device) {
  if (device == config::DeviceKind::cuda) {
    return {.device = device,
            .compute = DType::bf16,
            .sequence = 8192,
            .width = 4096,
            .ffn = 14336,
            .heads = 32,
            .kv_heads = 8,
            .head_dim = 128,
            .vocabulary = 128256,
            .head_rows = 1024,
            .copy = Bytes{std::uint64_t{1} << 30},
            .seconds = 0.3};
  }
  return {.device = device,
          .compute = DType::fp32,
          .sequence = 512,
          .width = 512,
          .ffn = 1536,
          .heads = 8,
          .kv_heads = 4,
          .head_dim = 64,
          .vocabulary = 8192,
          .head_rows = 256,
          .copy = Bytes{std::uint64_t{64} << 20},
          .seconds = 0.1};
}

void take_model(const model::ModelConfig& config, GpuCase& shapes) {
  shapes.width = config.width;
  shapes.ffn = config.ffn_width;
  shapes.heads = config.heads;
  shapes.kv_heads = config.kv_heads;
  shapes.head_dim = config.head_dim;
  shapes.vocabulary = config.vocab_size;
}

}  // namespace spillway::bench
