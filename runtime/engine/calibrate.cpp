#include "runtime/engine/calibrate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>

#include "cpu_adam/traffic.hpp"
#include "cpu_adam/worker_pool.hpp"
#include "nvme_swap/tile_store.hpp"
#include "offload/host/host_backend.hpp"
#include "offload/memory.hpp"
#include "runtime/engine/model_constants.hpp"
#include "runtime/engine/update_bench.hpp"

namespace spillway::engine {
namespace {

using offload::DeviceMemory;
using offload::PinnedMemory;

/// Cost of issuing an op and noticing its end: a queue, a wake-up and a poll.
constexpr double kOpOverheadSeconds = 20e-6;
constexpr int kRepetitions = 2;
/// From here on state is too large for caches, and a run long enough for a tenth of a second.
constexpr std::uint64_t kTunedParameters = std::uint64_t{32} << 20;
/// From here on the two seconds that a drive takes are worth it.
constexpr Bytes kTunedState{std::uint64_t{1} << 30};

/// The least of a few timings: interference only ever adds.
template <class Work>
double seconds_of(const Work& work) {
  double least = std::numeric_limits<double>::infinity();
  work();  // first touch of pages and caches
  for (int i = 0; i < kRepetitions; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    least = std::min(least, taken.count());
  }
  return least;
}

/// Buffers for one block and one micro-batch of FWD-BWD.
class BlockBench {
 public:
  BlockBench(const CalibrationRequest& request, offload::DeviceBackend& backend)
      : request_(request),
        stream_(backend.make_stream("calibrate")),
        constants_(transformer(), backend, *stream_) {
    const plan::Workload& w = request.workload;
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
    if (w.tied_head) tied_ = {backend, Bytes{w.tied_elements.value() * sizeof(float)}};
    for (const DeviceMemory* memory :
         {&parameters_, &gradients_, &input_, &output_, &gradient_, &saved_, &tokens_, &tied_}) {
      clear(backend, *memory);
    }
  }

  /// Seconds of all FWD-BWD work of one micro-batch through the whole model, activations kept.
  double whole_model() {
    const auto head = static_cast<std::uint32_t>(request_.workload.blocks.size() - 1);
    const double embedding = seconds_of([&] { run([this] { forward(0), backward(0); }); });
    const double layer = seconds_of([&] { run([this] { forward(1), backward(1); }); });
    const double loss = seconds_of([&] { run([this, head] { this->loss(head); }); });
    return embedding + layer * (head - 1) + loss;
  }

 private:
  template <class Task>
  void run(const Task& task) {
    stream_->submit(task);
    stream_->synchronize();
  }

  void clear(offload::DeviceBackend& backend, const DeviceMemory& memory) {
    if (memory.size() == Bytes{}) return;
    PinnedMemory zeros(backend, memory.size());
    std::memset(zeros.host().data(), 0, zeros.host().size());
    stream_->upload(memory.device(), zeros.host());
    stream_->synchronize();
  }

  [[nodiscard]] std::uint64_t padded(std::uint32_t block) const {
    return request_.workload.blocks[block].padded_parameters.value();
  }

  [[nodiscard]] offload::DeviceSpan<const std::byte> parameters(std::uint32_t block) const {
    return parameters_.device().subspan(0, padded(block) * size_of(request_.workload.compute));
  }

  void forward(std::uint32_t block) {
    const auto ids = tokens_.device().as<std::int32_t>();
    model::ForwardArguments arguments;
    arguments.block = block;
    arguments.parameters = parameters(block);
    arguments.tokens = ids.subspan(0, ids.size() / 2);
    if (block > 0) arguments.input = input_.device();
    arguments.output = output_.device();
    const std::uint64_t saved = request_.workload.blocks[block].saved_bytes.value();
    if (saved > 0) arguments.saved = saved_.device().subspan(0, saved);
    arguments.workspace = workspace_.device();
    transformer().forward(arguments);
  }

  void backward(std::uint32_t block) {
    const auto ids = tokens_.device().as<std::int32_t>();
    model::BackwardArguments arguments;
    arguments.block = block;
    if (block > 0) arguments.parameters = parameters(block);
    arguments.tokens = ids.subspan(0, ids.size() / 2);
    if (block > 0) arguments.input = input_.device();
    const std::uint64_t saved = request_.workload.blocks[block].saved_bytes.value();
    if (saved > 0) arguments.saved = saved_.device().subspan(0, saved);
    arguments.boundary_gradient = gradient_.device();
    arguments.gradients = gradients_.device().as<float>().subspan(0, padded(block));
    arguments.first = true;
    arguments.workspace = workspace_.device();
    transformer().backward(arguments);
  }

  void loss(std::uint32_t head) {
    const auto ids = tokens_.device().as<std::int32_t>();
    model::LossArguments arguments;
    arguments.parameters = parameters(head);
    if (request_.workload.tied_head) {
      arguments.tied_parameters = parameters(0);
      arguments.tied_gradients = tied_.device().as<float>();
    }
    arguments.targets = ids.subspan(ids.size() / 2, ids.size() / 2);
    arguments.input = input_.device();
    arguments.loss_sum = loss_.device().as<double>();
    arguments.gradient_scale = 1;
    arguments.boundary_gradient = gradient_.device();
    arguments.gradients = gradients_.device().as<float>().subspan(0, padded(head));
    arguments.first = true;
    arguments.workspace = workspace_.device();
    transformer().loss(arguments);
  }

  [[nodiscard]] model::Transformer& transformer() const { return request_.transformer; }

  const CalibrationRequest& request_;
  std::unique_ptr<offload::Stream> stream_;
  ModelConstants constants_;
  DeviceMemory parameters_, gradients_, input_, output_, gradient_, saved_, workspace_, tokens_,
      loss_, tied_;
};

double total_flops(const plan::Workload& workload) {
  double flops = 0;
  for (const plan::BlockShape& block : workload.blocks) {
    flops += block.forward_flops + block.backward_flops;
  }
  return flops;
}

/// DRAM bytes a second of the fused update with all its workers.
double update_rate(const CalibrationRequest& request, const Tuning& tuning) {
  const plan::Workload& w = request.workload;
  const std::size_t count = std::min<std::uint64_t>(request.options.tile_parameters,
                                                    plan::gradient_slot_elements(w).value());
  const cpu_adam::Kernel& kernel = update_kernel(request.options, w);
  cpu_adam::WorkerPool workers({.threads = request.options.threads});
  UpdateBench bench(kernel, count, request.options.adam, workers);
  const double seconds = seconds_of([&] { bench.pass(tuning.update_prefetch); });
  return static_cast<double>(count) *
         cpu_adam::bytes_per_parameter(kernel.format, kernel.gradient_dtype,
                                       kernel.parameter_dtype) /
         seconds;
}

/// Bytes a second of one direction of the host backend's link.
double copy_rate(const CalibrationRequest& request, offload::DeviceBackend& backend) {
  const std::uint64_t bytes =
      plan::gradient_slot_elements(request.workload).value() * size_of(request.workload.compute);
  const DeviceMemory device(backend, Bytes{bytes});
  const PinnedMemory host(backend, Bytes{bytes});
  std::memset(host.host().data(), 0, bytes);
  const auto stream = backend.make_stream("calibrate");
  return static_cast<double>(bytes) / seconds_of([&] {
           stream->upload(device.device(), host.host());
           stream->synchronize();
         });
}

void measure_disk(const CalibrationRequest& request, const Tuning& tuning,
                  plan::MachineProfile& profile) {
  constexpr std::uint32_t kTiles = 4;
  const Bytes tile{std::uint64_t{16} << 20};
  nvme_swap::StoreOptions options;
  options.directories = *request.state_directories;
  options.name = "calibration";
  options.engine = request.options.io_engine;
  options.disk_gigabytes_per_second = request.options.disk_gbps;
  options.remove_on_close = true;
  tune_store(tuning.drives, options);
  for (const auto& directory : options.directories) std::filesystem::create_directories(directory);
  const auto backend = offload::make_host_backend(
      {.device_capacity = Bytes{}, .pinned_capacity = tile * std::uint64_t{kTiles}});
  const PinnedMemory buffer(*backend, tile * std::uint64_t{kTiles});
  std::memset(buffer.host().data(), 1, buffer.host().size());
  const auto store =
      nvme_swap::TileStore::create(options, {.tiles = std::vector<Bytes>(kTiles, tile)});
  const auto slice = [&](std::uint32_t i) {
    return buffer.host().subspan(i * tile.value(), tile.value());
  };
  const std::uint64_t checksum = nvme_swap::checksum_of(slice(0));
  const auto all = [&](const auto& start) {
    std::vector<Ticket> tickets;
    for (std::uint32_t i = 0; i < kTiles; ++i) tickets.push_back(start(i));
    for (Ticket& ticket : tickets) ticket.wait();
  };
  const auto bytes = static_cast<double>(buffer.size().value());
  const auto write = [&](std::uint32_t i) {
    return store->write(TileIndex{i}, slice(i), checksum);
  };
  profile.nvme_write = bytes / seconds_of([&] { all(write); });
  const auto read = [&](std::uint32_t i) { return store->read(TileIndex{i}, slice(i)); };
  profile.nvme_read = bytes / seconds_of([&] { all(read); });
}

/// Shares by rate, if every directory has the space for its own: two slots of each tile, and a
/// hundredth for records and rounding.
std::vector<double> weights_that_fit(const DriveTunings& drives,
                                     std::span<const std::filesystem::path> directories,
                                     Bytes one_slot) {
  std::vector<double> weights = nvme_swap::stripe_weights(drives);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double share = 2.02 * static_cast<double>(one_slot.value()) * weights[i] / sum;
    if (share > static_cast<double>(std::filesystem::space(directories[i]).available)) return {};
  }
  return weights;
}

}  // namespace

Tuning tune(const CalibrationRequest& request, const plan::Placement& placement,
            MachineTuning& known, const std::function<void(const std::string&)>& note) {
  const TrainOptions& options = request.options;
  std::uint64_t parameters = 0;
  Bytes on_disk;
  for (std::size_t b = 0; b < request.workload.blocks.size(); ++b) {
    const ElementCount padded = request.workload.blocks[b].padded_parameters;
    parameters += padded.value();
    if (placement.blocks[b].state != plan::Tier::nvme) continue;
    on_disk += plan::slot_bytes(placement.format, padded);
  }
  Tuning tuning;
  if (parameters >= kTunedParameters) {
    const cpu_adam::Kernel& kernel = update_kernel(options, request.workload);
    tuning.update_prefetch = known.prefetch(kernel, options.threads,
                                            [&] { return best_prefetch(kernel, options.threads); });
  }
  if (on_disk < kTunedState || options.disk_gbps || !request.state_directories) return tuning;
  const auto& directories = *request.state_directories;
  try {
    for (const auto& directory : directories) {
      std::filesystem::create_directories(directory);
      tuning.drives.push_back(known.drive(directory, options.io_engine, [&] {
        note(fmt::format("measuring what the disk of {} does best", directory.string()));
        return nvme_swap::calibrate_drive({.directory = directory, .engine = options.io_engine});
      }));
    }
    tuning.weights = weights_that_fit(tuning.drives, directories, on_disk);
  } catch (const Error& error) {
    tuning.drives.clear();  // a run can do without: its disk may be full but for its own files
    note(fmt::format("the disk is used as it is, not measured: {}", error.what()));
  }
  return tuning;
}

plan::MachineProfile calibrate(const CalibrationRequest& request, const Tuning& tuning) {
  const Bytes unlimited{std::numeric_limits<std::int64_t>::max()};
  const auto backend =
      offload::make_host_backend({.device_capacity = unlimited,
                                  .pinned_capacity = unlimited,
                                  .link_gigabytes_per_second = request.options.host_link_gbps});
  plan::MachineProfile profile;
  profile.gpu_flops = total_flops(request.workload) / BlockBench(request, *backend).whole_model();
  profile.h2d = profile.d2h = copy_rate(request, *backend);
  profile.update = profile.gpu_update = update_rate(request, tuning);
  profile.op_overhead_seconds = kOpOverheadSeconds;
  profile.cpu_shares_gpu = true;
  if (request.state_directories) measure_disk(request, tuning, profile);
  return profile;
}

}  // namespace spillway::engine
