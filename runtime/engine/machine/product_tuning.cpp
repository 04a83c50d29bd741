#include "runtime/engine/machine/product_tuning.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/dtype.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/device/compute_device.hpp"
#include "runtime/engine/device/model_runtime.hpp"
#include "runtime/engine/machine/normal_numbers.hpp"
#include "runtime/engine/machine/timing.hpp"
#include "runtime/model/cuda/cuda_ops.hpp"
#include "runtime/model/cuda/gemm/gemm_layout.hpp"

namespace spillway::engine {
namespace {

using model::GemmOutput;
using model::GemmShape;
using model::cuda::ColumnMajor;
using offload::DeviceMemory;
using offload::PinnedMemory;

constexpr std::uint64_t kOperandAlignment = 256;
/// Numbers that operands repeat: a prime, so that rows of round lengths differ.
constexpr std::uint64_t kNumbers = 1'048'573;
/// Proposals of the library that are timed.
constexpr int kProposals = 16;

/// Bytes of each operand, whole units of alignment.
struct OperandBytes {
  std::uint64_t a = 0, b = 0, bias = 0, residual = 0, out = 0;
  [[nodiscard]] std::uint64_t inputs() const { return a + b + bias + residual; }
};

OperandBytes bytes_of(const GemmShape& shape, DType compute) {
  const auto whole = [](std::uint64_t bytes) { return round_up(bytes, kOperandAlignment); };
  const auto matrix = [&](const ColumnMajor& m, std::uint64_t element) {
    return whole(m.columns * m.leading * element);
  };
  const model::cuda::ColumnMajorGemm product = model::cuda::column_major(shape);
  const std::uint64_t element = size_of(compute);
  return {.a = matrix(product.right, element),
          .b = matrix(product.left, element),
          .bias = shape.bias ? whole(shape.columns * element) : 0,
          .residual = shape.residual ? matrix(product.result, element) : 0,
          .out = matrix(product.result, product.fp32_result ? sizeof(float) : element)};
}

/// The largest of all shapes.
struct Extent {
  Bytes inputs, out, workspace;
};

Extent extent_of(std::span<const GemmShape> shapes, DType compute) {
  Extent extent{.inputs = {}, .out = {}, .workspace = model::cuda::gemm_workspace()};
  for (const GemmShape& shape : shapes) {
    const OperandBytes bytes = bytes_of(shape, compute);
    extent.inputs = std::max(extent.inputs, Bytes{bytes.inputs()});
    extent.out = std::max(extent.out, Bytes{bytes.out});
  }
  return extent;
}

}  // namespace

std::vector<GemmShape> planned_products(const model::ModelConfig& config,
                                        const config::TrainOptions& options) {
  config::TrainOptions on_gpu = options;
  on_gpu.device = config::DeviceKind::cuda;
  const ModelRuntime sizes = make_model_sizes(config, on_gpu);
  const auto* ops = dynamic_cast<const model::cuda::SizingOps*>(sizes.ops.get());
  SPILLWAY_ASSERT(ops != nullptr);
  return ops->gemms();
}

// --- operands

Bytes ProductOperands::needed(std::span<const GemmShape> shapes, DType compute) {
  const Extent extent = extent_of(shapes, compute);
  return extent.inputs + extent.out + extent.workspace;
}

ProductOperands::ProductOperands(offload::DeviceBackend& backend, offload::Stream& stream,
                                 std::span<const GemmShape> shapes, DType compute)
    : compute_(compute) {
  const Extent extent = extent_of(shapes, compute);
  inputs_ = {backend, extent.inputs};
  out_ = {backend, extent.out};
  workspace_ = {backend, extent.workspace};
  const PinnedMemory numbers(backend, Bytes{kNumbers * size_of(compute)});
  write_normal_numbers(numbers.host(), compute);
  for (const DeviceMemory* const memory : {&inputs_, &out_}) {
    repeat(numbers.host(), memory->device(), stream);
  }
  stream.synchronize();
}

model::GemmArguments ProductOperands::arguments(const GemmShape& shape) const {
  const OperandBytes bytes = bytes_of(shape, compute_);
  std::uint64_t taken = 0;
  const auto next = [&](std::uint64_t size) {
    const auto operand = inputs_.device().subspan(taken, size);
    taken += size;
    return operand;
  };
  model::GemmArguments arguments;
  arguments.a = next(bytes.a);
  arguments.b = next(bytes.b);
  arguments.bias = next(bytes.bias);
  arguments.residual = next(bytes.residual);
  arguments.out = out_.device().subspan(0, bytes.out);
  arguments.first = false;
  arguments.workspace = workspace_.device();
  return arguments;
}

// --- choosing

TunedProduct tune_product(const GemmShape& shape, const std::string& key, MachineTuning& known,
                          MeasureWhat what, const MeasureProduct& measure) {
  TunedProduct product{.shape = shape, .key = key};
  product.known = what == MeasureWhat::unknown && known.products().find(key).has_value();
  if (product.known) return product;
  const std::vector<model::cuda::GemmTiming> timings = measure();
  product.algorithms = timings.size();
  if (timings.empty()) return product;
  const model::cuda::GemmTiming& best = timings[model::cuda::best_of(timings)];
  product.first_milliseconds = timings.front().milliseconds;
  product.best_milliseconds = best.milliseconds;
  known.keep_product(key, best.algorithm);
  return product;
}

void tune_products(const ProductTuningRequest& request, MachineTuning& known,
                   const std::function<void(const TunedProduct&)>& tuned) {
  const config::TrainOptions& options = request.options;
  const std::unique_ptr<model::Ops> made = make_ops(options);
  auto* const ops = dynamic_cast<model::cuda::CudaOps*>(made.get());
  check(ops != nullptr, ErrorCode::not_supported,
        "algorithms of matrix products are measured on a GPU: --device cuda");
  const Bytes allowed = options.device_memory.value_or(free_device_memory(options.device_index));
  const Bytes needed = ProductOperands::needed(request.shapes, options.compute);
  check(needed <= allowed, ErrorCode::does_not_fit,
        fmt::format("the operands of the largest matrix products need {} of device memory and {} "
                    "are allowed: raise --device-memory, or lower the context or the micro-batch",
                    format_bytes(needed), format_bytes(allowed)));
  const auto backend = make_backend(
      options, {.device = needed, .host = Bytes{kNumbers * size_of(options.compute)}, .nvme = {}},
      nullptr);
  const auto stream = backend->make_stream("products");
  ops->bind_stream(stream->native());
  const ProductOperands operands(*backend, *stream, request.shapes, options.compute);
  bool warm = false;
  for (const GemmShape& shape : request.shapes) {
    tuned(tune_product(shape, ops->gemm_key(shape), known, request.what, [&] {
      const model::GemmArguments arguments = operands.arguments(shape);
      if (shape.output == GemmOutput::gradient) ops->fill_zero(arguments.out.as<float>());
      if (!warm) warm_up([&] { (void)ops->measure_gemm(shape, arguments, 1); });
      warm = true;
      return ops->measure_gemm(shape, arguments, kProposals);
    }));
  }
}

}  // namespace spillway::engine
