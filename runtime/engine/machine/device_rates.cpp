#include "runtime/engine/machine/device_rates.hpp"

#include <algorithm>
#include <cstring>

#include "cpu_adam/traffic.hpp"
#include "offload/memory.hpp"
#include "runtime/engine/machine/calibration_sizes.hpp"
#include "runtime/engine/machine/compute_device.hpp"
#include "runtime/engine/machine/least_seconds.hpp"
#include "runtime/engine/step/model_constants.hpp"

namespace spillway::engine {
namespace {

using offload::DeviceMemory;
using offload::PinnedMemory;

/// Buffers for one layer and one micro-batch of FWD-BWD.
class BlockBench {
 public:
  BlockBench(const ModelRuntime& model, const plan::Workload& w, offload::DeviceBackend& backend)
      : model_(model),
        workload_(w),
        stream_(backend.make_stream("calibrate")),
        constants_(transformer(), backend, *stream_) {
    model.ops->bind_stream(stream_->native());
    const std::uint64_t slot = plan::gradient_slot_elements(w).value();
    Bytes saved;
    for (const plan::BlockShape& block : w.blocks) saved = std::max(saved, block.saved_bytes);
    parameters_ = {backend, Bytes{slot * size_of(w.compute)}};
    gradients_ = {backend, Bytes{slot * sizeof(float)}};
    for (DeviceMemory* boundary : {&input_, &output_, &gradient_}) {
      *boundary = {backend, w.boundary_bytes};
    }
    saved_ = {backend, std::max(saved, Bytes{1})};
    workspace_ = {backend, std::max(w.workspace_bytes, Bytes{1})};
    tokens_ = {backend, w.token_bytes};
    loss_ = {backend, Bytes{sizeof(double)}};
    if (w.tied_head) {
      const ElementCount tied = w.tied_elements_of(w.tied_blocks().first);
      tied_ = {backend, Bytes{tied.value() * sizeof(float)}};
    }
    if (w.tiled) {
      const std::uint64_t vectors = plan::vector_elements(w).value();
      vectors_ = {backend, Bytes{vectors * size_of(w.compute)}};
      vector_gradients_ = {backend, Bytes{vectors * sizeof(float)}};
      carried_ = {backend, w.carried_bytes};
    }
    for (const DeviceMemory* memory : {&parameters_, &gradients_, &input_, &output_, &gradient_,
                                       &saved_, &tokens_, &tied_, &vectors_, &carried_}) {
      clear(*memory);
    }
  }

  /// Seconds of all FWD-BWD work of one micro-batch through the whole model, activations kept.
  double whole_model() {
    const double embedding = least_seconds([&] { run([this] { pass(0); }); });
    const double layer = least_seconds([&] { run([this] { pass(1); }); });
    const double loss = least_seconds([&] { run([this] { head(); }); });
    return embedding + layer * (workload_.head_layer() - 1) + loss;
  }

 private:
  template <class Task>
  void run(const Task& task) {
    stream_->submit(task);
    stream_->synchronize();
  }

  /// Forward and backward of a layer.
  void pass(std::uint32_t layer) {
    const std::uint32_t first = workload_.first_block(layer);
    const std::uint32_t end = workload_.first_block(layer + 1);
    for (std::uint32_t block = first; block < end; ++block) forward(block);
    for (std::uint32_t block = end; block-- > first;) backward(block);
  }

  void head() {
    const auto [first, end] = workload_.loss_blocks();
    for (std::uint32_t block = first; workload_.tiled && block < end; ++block) loss(block, false);
    for (std::uint32_t block = end; block-- > first;) loss(block, true);
  }

  void clear(const DeviceMemory& memory) {
    run([&] { model_.ops->fill_zero(memory.device().as<float>()); });
  }

  [[nodiscard]] std::uint64_t padded(std::uint32_t block) const {
    return workload_.blocks[block].padded_parameters.value();
  }

  [[nodiscard]] offload::DeviceSpan<const std::byte> parameters(std::uint32_t block) const {
    return parameters_.device().subspan(0, padded(block) * size_of(workload_.compute));
  }

  [[nodiscard]] std::uint64_t saved_bytes(std::uint32_t block) const {
    return workload_.blocks[workload_.first_block(workload_.layer_of(block))].saved_bytes.value();
  }

  void forward(std::uint32_t block) {
    const auto ids = tokens_.device().as<std::int32_t>();
    model::ForwardArguments arguments;
    arguments.block = block;
    arguments.parameters = parameters(block);
    arguments.shared = vectors_.device();
    arguments.tokens = ids.subspan(0, ids.size() / 2);
    if (workload_.layer_of(block) > 0) arguments.input = input_.device();
    arguments.output = output_.device();
    const std::uint64_t saved = saved_bytes(block);
    if (saved > 0) arguments.saved = saved_.device().subspan(0, saved);
    arguments.workspace = workspace_.device();
    transformer().forward(arguments);
  }

  void backward(std::uint32_t block) {
    const auto ids = tokens_.device().as<std::int32_t>();
    model::BackwardArguments arguments;
    arguments.block = block;
    const bool embeds = workload_.layer_of(block) == 0;
    if (!embeds) arguments.parameters = parameters(block);
    arguments.shared = vectors_.device();
    arguments.tokens = ids.subspan(0, ids.size() / 2);
    if (!embeds) arguments.input = input_.device();
    const std::uint64_t saved = saved_bytes(block);
    if (saved > 0) arguments.saved = saved_.device().subspan(0, saved);
    arguments.carried = carried_.device();
    arguments.shared_gradients = vector_gradients_.device().as<float>();
    arguments.boundary_gradient = gradient_.device();
    arguments.gradients = gradients_.device().as<float>().subspan(0, padded(block));
    arguments.first = true;
    arguments.workspace = workspace_.device();
    transformer().backward(arguments);
  }

  void loss(std::uint32_t block, bool gradient) {
    const auto ids = tokens_.device().as<std::int32_t>();
    model::LossArguments arguments;
    arguments.block = block;
    arguments.parameters = parameters(block);
    arguments.shared = vectors_.device();
    arguments.carried = carried_.device();
    arguments.shared_gradients = vector_gradients_.device().as<float>();
    if (workload_.tied_head) {
      arguments.tied_parameters = parameters(workload_.tiled ? block : 0);
      arguments.tied_gradients = tied_.device().as<float>();
    }
    arguments.targets = ids.subspan(ids.size() / 2, ids.size() / 2);
    arguments.input = input_.device();
    arguments.loss_sum = loss_.device().as<double>();
    arguments.gradient_scale = 1;
    if (gradient) arguments.boundary_gradient = gradient_.device();
    arguments.gradients = gradients_.device().as<float>().subspan(0, padded(block));
    arguments.first = true;
    arguments.workspace = workspace_.device();
    transformer().loss(arguments);
  }

  [[nodiscard]] model::Transformer& transformer() const { return *model_.transformer; }

  const ModelRuntime& model_;
  const plan::Workload& workload_;
  std::unique_ptr<offload::Stream> stream_;
  ModelConstants constants_;
  DeviceMemory parameters_, gradients_, input_, output_, gradient_, saved_, workspace_, tokens_,
      loss_, tied_, vectors_, vector_gradients_, carried_;
};

/// Copies between pinned memory and the device, of the size of a gradient slot.
void measure_link(offload::DeviceBackend& backend, Bytes bytes, DeviceRates& rates) {
  const DeviceMemory above(backend, bytes);
  const DeviceMemory below(backend, bytes);
  const PinnedMemory source(backend, bytes);
  const PinnedMemory target(backend, bytes);
  std::memset(source.host().data(), 0, bytes.value());
  const auto up = backend.make_stream("calibrate h2d");
  const auto down = backend.make_stream("calibrate d2h");
  const auto amount = static_cast<double>(bytes.value());
  rates.h2d = amount / least_seconds([&] {
                up->upload(above.device(), source.host());
                up->synchronize();
              });
  rates.d2h = amount / least_seconds([&] {
                down->download(target.host(), below.device());
                down->synchronize();
              });
  rates.h2d_d2h_combined = 2 * amount / least_seconds([&] {
                             up->upload(above.device(), source.host());
                             down->download(target.host(), below.device());
                             up->synchronize();
                             down->synchronize();
                           });
}

/// The fused update of a tile whose state lies on the device.
double update_rate(const config::TrainOptions& options, const plan::Workload& w, Bytes room,
                   offload::DeviceBackend& backend) {
  const cpu_adam::Kernel& kernel = update_kernel(options, w);
  const ElementCount tile = std::min(ElementCount{options.tile_parameters}, plan::largest_block(w));
  const std::size_t count =
      update_parameters(kernel, tile, ElementCount{kLeafParameters}, room).value();
  const cpu_adam::StateLayout layout = cpu_adam::make_layout(kernel.format, count);
  const DeviceMemory state(backend, Bytes{layout.bytes});
  const DeviceMemory gradient(backend, Bytes{count * size_of(kernel.gradient_dtype)});
  const DeviceMemory parameters(backend, Bytes{count * size_of(kernel.parameter_dtype)});
  const auto stream = backend.make_stream("calibrate");
  const auto math = make_device_math(options, *stream);
  const std::array<cpu_adam::ParameterGroup, 1> groups{
      {{.end = count, .scalars = cpu_adam::make_scalars(options.adam, 1, 1.0)}}};
  std::byte* const where = parameters.device().address();
  std::byte* const kept = state.device().address();
  const cpu_adam::UpdateRange range =
      cpu_adam::tile_range(layout, kept, kept, gradient.device().address(), where, where);
  const double seconds = least_seconds([&] {
    stream->submit([&] {
      math->update({.format = kernel.format,
                    .gradient = kernel.gradient_dtype,
                    .parameter = kernel.parameter_dtype},
                   groups, range);
    });
    stream->synchronize();
  });
  return static_cast<double>(count) *
         cpu_adam::bytes_per_parameter(kernel.format, kernel.gradient_dtype,
                                       kernel.parameter_dtype) /
         seconds;
}

}  // namespace

DeviceRates measure_device(const config::TrainOptions& options, const ModelRuntime& model,
                           const plan::Workload& workload, const plan::Budgets& budgets) {
  const auto backend = make_backend(options, budgets, nullptr);
  DeviceRates rates;
  rates.flops =
      plan::micro_batch_flops(workload) / BlockBench(model, workload, *backend).whole_model();
  const std::uint64_t slot = plan::gradient_slot_elements(workload).value();
  const Bytes parameters{slot * size_of(workload.compute)};
  measure_link(*backend, link_bytes(parameters, budgets.device, budgets.host), rates);
  if (options.device == config::DeviceKind::cuda) {
    rates.update = update_rate(options, workload, budgets.device, *backend);
  }
  return rates;
}

}  // namespace spillway::engine
