// Which algorithm multiplies fastest for each matrix product of a training step: measured once on
// this machine's GPU, kept in its profile, taken by runs that start later. Nothing here is called
// by a run. Control thread only.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "offload/memory.hpp"
#include "runtime/config/train_options.hpp"
#include "runtime/engine/machine/machine_tuning.hpp"
#include "runtime/model/cuda/gemm/gemm_choices.hpp"
#include "runtime/model/model_config.hpp"

namespace spillway::engine {

/// Returns every matrix product that the model plans on a GPU with these options, resolved; each
/// once. Needs no GPU.
[[nodiscard]] std::vector<model::GemmShape> planned_products(const model::ModelConfig& config,
                                                             const config::TrainOptions& options);

/// Operands of one product after another, in memory that is taken once and filled with normal
/// numbers: zeros or denormals would take less power, and another time, than training does.
class ProductOperands {
 public:
  /// Bytes of device memory that any of `shapes` needs, one at a time.
  [[nodiscard]] static Bytes needed(std::span<const model::GemmShape> shapes, DType compute);

  /// Takes as much from `backend`, which outlives this, and 2 or 4 MiB of pinned memory meanwhile.
  ProductOperands(offload::DeviceBackend& backend, offload::Stream& stream,
                  std::span<const model::GemmShape> shapes, DType compute);

  /// Returns the operands of one of the shapes, each at a multiple of 256 bytes. A gradient is
  /// added to what is left there from before, as by all micro-batches but the first.
  [[nodiscard]] model::GemmArguments arguments(const model::GemmShape& shape) const;

 private:
  DType compute_;
  offload::DeviceMemory inputs_, out_, workspace_;
};

/// What is known of one product now.
struct TunedProduct {
  model::GemmShape shape;
  std::string key;             ///< of GemmChoices
  bool known = false;          ///< from before: nothing was measured
  std::size_t algorithms = 0;  ///< measured; 0: the library has none for aligned operands
  double first_milliseconds = 0, best_milliseconds = 0;
  /// Speed of the chosen one over that of the library's first proposal.
  [[nodiscard]] double gain() const {
    return algorithms > 0 ? first_milliseconds / best_milliseconds : 1;
  }
};

/// In the library's order.
using MeasureProduct = std::function<std::vector<model::cuda::GemmTiming>()>;

enum class MeasureWhat : std::uint8_t { unknown, everything };

/// Measures the product and keeps the best algorithm; with `MeasureWhat::unknown`, only if `known`
/// has none for `key`.
TunedProduct tune_product(const model::GemmShape& shape, const std::string& key,
                          MachineTuning& known, MeasureWhat what, const MeasureProduct& measure);

struct ProductTuningRequest {
  const config::TrainOptions& options;  ///< resolved
  std::span<const model::GemmShape> shapes;
  MeasureWhat what = MeasureWhat::unknown;
};

/// Tunes all products of the request on the GPU, and calls `tuned` for each. Measures algorithms
/// only for operands that start at multiples of 16 bytes, as a run's do wherever rows allow it;
/// others keep the library's first proposal. Takes no more device memory than the options allow:
/// throws `Error{does_not_fit}` before it begins; `Error{not_supported}` where there is no usable
/// GPU.
void tune_products(const ProductTuningRequest& request, MachineTuning& known,
                   const std::function<void(const TunedProduct&)>& tuned);

}  // namespace spillway::engine
