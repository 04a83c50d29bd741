// Another framework on the same GPU: memory and a stream of its own, on which it computes gradients
// and reads parameters.
#pragma once

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "offload/cuda/cuda_backend.hpp"
#include "offload/memory.hpp"
#include "runtime/engine/embedded_trainer.hpp"

namespace spillway::engine {

class DeviceFramework {
 public:
  explicit DeviceFramework(const std::vector<std::size_t>& sizes)
      : backend_(offload::make_cuda_backend(
            {.device_capacity = Bytes{1 << 26}, .pinned_capacity = Bytes{1 << 26}})),
        stream_(backend_->make_stream("framework")) {
    for (const std::size_t elements : sizes) {
      const Bytes bytes{elements * sizeof(float)};
      tensors_.push_back({.device = offload::DeviceMemory(*backend_, bytes),
                          .made = offload::PinnedMemory(*backend_, bytes),
                          .spoilt = offload::PinnedMemory(*backend_, bytes),
                          .read = offload::PinnedMemory(*backend_, bytes),
                          .event = backend_->make_event()});
      std::ranges::fill(tensors_.back().spoilt.host(), std::byte{0xff});
    }
  }

  /// Computes a gradient, which takes until the stream comes to it. The memory had NaN before.
  DeviceGradient gradient(std::uint32_t parameter, std::span<const std::byte> values,
                          offload::ExternalWork::Kind kind) {
    Tensor& tensor = tensors_[parameter];
    const auto memory = tensor.device.device().subspan(0, values.size());
    stream_->upload(memory, tensor.spoilt.host().first(values.size()));
    stream_->synchronize();  // what was made before has been read
    std::ranges::copy(values, tensor.made.host().begin());
    stream_->upload(memory, tensor.made.host().first(values.size()));
    stream_->record(*tensor.event);
    const bool event = kind == offload::ExternalWork::Kind::event;
    return {.values = memory, .ready = {kind, event ? tensor.event->native() : stream_->native()}};
  }

  /// Reads memory of the device, when the stream comes to it: `was_read` says what it found.
  void read(std::uint32_t parameter, std::span<std::byte> address) {
    stream_->download(tensors_[parameter].read.host().first(address.size()),
                      offload::DeviceSpan<const std::byte>(address.data(), address.size()));
  }
  std::vector<std::byte> was_read(std::uint32_t parameter, std::size_t bytes) {
    stream_->synchronize();
    const auto found = tensors_[parameter].read.host().first(bytes);
    return {found.begin(), found.end()};
  }
  /// Writes memory of the device, when the stream comes to it.
  void write(std::uint32_t parameter, std::span<std::byte> address,
             std::span<const std::byte> values) {
    std::ranges::copy(values, tensors_[parameter].made.host().begin());
    stream_->upload({address.data(), address.size()},
                    tensors_[parameter].made.host().first(values.size()));
  }

  [[nodiscard]] offload::ExternalWork work() const {
    return {offload::ExternalWork::Kind::stream, stream_->native()};
  }
  [[nodiscard]] std::span<std::byte> host_memory(std::uint32_t parameter) const {
    return tensors_[parameter].made.host();
  }

 private:
  struct Tensor {
    offload::DeviceMemory device;
    offload::PinnedMemory made, spoilt, read;
    std::unique_ptr<offload::Event> event;
  };
  std::unique_ptr<offload::DeviceBackend> backend_;
  std::vector<Tensor> tensors_;
  std::unique_ptr<offload::Stream> stream_;
};

/// Returns once the memory of a parameter's gradient may be used again.
inline void await_gradient(const EmbeddedTrainer& trainer, std::uint32_t parameter) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (trainer.reads_gradient(parameter)) {
    if (std::chrono::steady_clock::now() > end) throw std::runtime_error("it is read for ever");
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace spillway::engine
