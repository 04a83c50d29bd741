// Memory of the GPU for tests of kernels: a stretch that is handed out from its start, and a stream
// to run on. Copies wait, which a run never does. One thread.
#pragma once

#include <algorithm>
#include <memory>
#include <span>

#include "offload/cuda/cuda_backend.hpp"
#include "offload/memory.hpp"

namespace spillway::test_support {

class GpuArena {
 public:
  /// Takes `size` bytes of device memory, and a little pinned memory to copy through.
  explicit GpuArena(Bytes size)
      : backend_(offload::make_cuda_backend(
            {.device_capacity = size, .pinned_capacity = Bytes{kStaging}})),
        device_(*backend_, size),
        staging_(*backend_, Bytes{kStaging}),
        stream_(backend_->make_stream("test")) {}

  /// Aligned to 256 bytes; lives as long as the arena.
  [[nodiscard]] std::byte* allocate(std::size_t size) {
    const std::size_t first = used_;
    used_ = round_up(first + size, 256);
    return device_.device().subspan(first, size).address();
  }
  void upload(std::byte* target, std::span<const std::byte> source) {
    for (std::size_t done = 0; done < source.size(); done += kStaging) {
      const auto piece = source.subspan(done, std::min(kStaging, source.size() - done));
      std::copy(piece.begin(), piece.end(), staging_.host().begin());
      stream_->upload({target + done, piece.size()}, staging_.host().first(piece.size()));
      stream_->synchronize();
    }
  }
  void download(std::span<std::byte> target, const std::byte* source) {
    for (std::size_t done = 0; done < target.size(); done += kStaging) {
      const auto piece = target.subspan(done, std::min(kStaging, target.size() - done));
      stream_->download(staging_.host().first(piece.size()), {source + done, piece.size()});
      stream_->synchronize();
      std::copy_n(staging_.host().begin(), piece.size(), piece.begin());
    }
  }
  [[nodiscard]] offload::Stream& stream() { return *stream_; }

 private:
  static constexpr std::size_t kStaging = std::size_t{1} << 20;
  std::unique_ptr<offload::DeviceBackend> backend_;
  offload::DeviceMemory device_;
  offload::PinnedMemory staging_;
  std::unique_ptr<offload::Stream> stream_;
  std::size_t used_ = 0;
};

}  // namespace spillway::test_support
