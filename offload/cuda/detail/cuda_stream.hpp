// CudaStream and CudaEvent: a CUDA stream and event, owned.
//
// Threads: the control thread. Nothing here allocates but a copy of memory that is not pinned, and
// nothing blocks but `synchronize` and the end of a stream.
#pragma once

#include <string>
#include <string_view>

#include "offload/cuda/detail/cuda_api.hpp"
#include "offload/cuda/detail/pageable_memory.hpp"
#include "offload/device_backend.hpp"

namespace spillway::offload::cuda {

class CudaEvent final : public Event {
 public:
  /// `api` outlives this, as it does streams.
  explicit CudaEvent(CudaApi& api);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  [[nodiscard]] bool done() override;
  [[nodiscard]] void* native() const override { return handle_; }

 private:
  CudaApi& api_;
  CudaApi::EventHandle handle_ = nullptr;
};

class CudaStream final : public Stream {
 public:
  /// Takes the `piece` by which pinned memory is registered, and what is not pinned that it may
  /// have to copy. `api` and `pageable` outlive this.
  CudaStream(CudaApi& api, std::string_view name, Urgency urgency, std::size_t piece,
             PageableMemory* pageable = nullptr);
  /// Completes what was submitted. Logs what that fails with.
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void upload(DeviceSpan<std::byte> target, std::span<const std::byte> source) override;
  void download(std::span<std::byte> target, DeviceSpan<const std::byte> source) override;
  /// Throws what the task throws.
  void submit(InlineTask task) override;
  void record(Event& event) override;
  void wait(Event& event) override;
  void synchronize() override;
  [[nodiscard]] void* native() const override { return handle_; }

 private:
  void check_action(Status status, std::string_view action) const;
  /// Copies in parts where the pinned side crosses seams.
  void copy(std::byte* target, const std::byte* source, std::size_t size, CopyDirection direction);
  /// Copies through this stream's slot of the pinned buffer.
  void copy_pageable(std::byte* target, const std::byte* source, std::size_t size,
                     CopyDirection direction);
  /// Copies between places of the host in the stream's order.
  void copy_on_host(std::byte* target, const std::byte* source, std::size_t size);

  CudaApi& api_;
  const std::string name_;
  const std::size_t piece_;
  PageableMemory* const pageable_;
  CudaApi::StreamHandle handle_ = nullptr;
  std::span<std::byte> slot_;  ///< taken for the first copy of pageable memory
};

}  // namespace spillway::offload::cuda
