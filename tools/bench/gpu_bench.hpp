// Measures the device that FWD-BWD runs on: products and attention at the shapes of one layer, and
// copies between it and the host. Every result is checked.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/config/train_options.hpp"
#include "runtime/model/model_config.hpp"

namespace spillway::bench {

/// Shapes of a Llama layer and of a chunk of its head, and sizes of copies.
struct GpuCase {
  config::DeviceKind device = config::DeviceKind::host;
  DType compute = DType::bf16;
  std::uint32_t sequence = 0;  ///< tokens of the one window
  std::uint32_t width = 0, ffn = 0, heads = 0, kv_heads = 0, head_dim = 0;
  std::uint32_t vocabulary = 0;
  std::uint32_t head_rows = 0;  ///< tokens of a chunk of the head
  Bytes copy;                   ///< of one copy
  double seconds = 0;           ///< about as long is each thing measured
  std::uint32_t compute_threads = 0;
  bool deterministic = true;
  bool pageable = true;  ///< whether copies of memory that is not pinned are measured too
};

/// Returns Llama-3-8B and copies of 1 GiB on a GPU; a small model on the host backend.
[[nodiscard]] GpuCase default_case(config::DeviceKind device);
/// Gives `shapes` the widths and the vocabulary of the model.
void take_model(const model::ModelConfig& config, GpuCase& shapes);

struct ProductRate {
  std::string name;  ///< of the matrix and the pass: "qkv forward"
  std::uint64_t rows = 0, columns = 0, inner = 0;
  double seconds = 0, flops = 0;
  [[nodiscard]] double tflops() const { return flops / seconds / 1e12; }
};

/// Gigabytes (1e9) a second.
struct CopyRates {
  double h2d = 0, d2h = 0;
  double both = 0;  ///< sum of both directions while both run
};

struct GpuMeasurement {
  std::string device;
  std::vector<ProductRate> products;
  std::vector<ProductRate> attention;  ///< FLOPs of the causal half only
  std::string attention_engines;  ///< "own", or the engines that cuDNN chose; empty: the host's
  CopyRates pinned;
  std::optional<CopyRates> pageable;
  /// Time-weighted over the products and attention of one layer, forward and backward.
  double layer_tflops = 0;
};

/// Throws `Error{internal}` if a result is wrong.
[[nodiscard]] GpuMeasurement measure_gpu(const GpuCase& shapes);

}  // namespace spillway::bench
