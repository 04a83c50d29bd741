#include "offload/cuda/detail/cuda_stream.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "offload/cuda/detail/pinned_memory.hpp"
#include "runtime/base/error.hpp"

namespace spillway::offload::cuda {
namespace {

CudaEvent& cuda_event(Event& event) {
  auto* const own = dynamic_cast<CudaEvent*>(&event);
  SPILLWAY_ASSERT(own != nullptr);  // an event of another backend
  return *own;
}

}  // namespace

CudaEvent::CudaEvent(CudaApi& api) : api_(api) {
  check_cuda(api_, api_.create_event(handle_), "making an event");
}

CudaEvent::~CudaEvent() { log_cuda(api_, api_.destroy_event(handle_), "destroying an event"); }

bool CudaEvent::done() {
  const Status status = api_.query(handle_);
  if (status == kNotReady) return false;
  check_cuda(api_, status, "work on the GPU before an event");
  return true;
}

CudaStream::CudaStream(CudaApi& api, std::string_view name, Urgency urgency, std::size_t piece,
                       PageableMemory* pageable)
    : api_(api), name_(name), piece_(piece), pageable_(pageable) {
  check_action(api_.create_stream(handle_, urgency), "making it");
}

CudaStream::~CudaStream() {
  log_cuda(api_, api_.synchronize(handle_), "the work of a stream that ends");
  log_cuda(api_, api_.destroy_stream(handle_), "destroying a stream");
  if (!slot_.empty()) pageable_->give_back(slot_);
}

/// The text is made for a failure only: a step allocates nothing.
void CudaStream::check_action(Status status, std::string_view action) const {
  if (status == kSuccess) [[likely]] {
    return;
  }
  check_cuda(api_, status, fmt::format("stream {}: {}", name_, action));
}

void CudaStream::copy(std::byte* target, const std::byte* source, std::size_t size,
                      CopyDirection direction) {
  const bool up = direction == CopyDirection::to_device;
  if (pageable_ != nullptr && pageable_->holds(up ? source : target)) {
    return copy_pageable(target, source, size, direction);
  }
  for_each_piece(up ? source : target, size, piece_, [&](std::size_t first, std::size_t count) {
    check_action(api_.copy(target + first, source + first, count, direction, handle_),
                 up ? "upload" : "download");
    return true;
  });
}

void CudaStream::copy_on_host(std::byte* target, const std::byte* source, std::size_t size) {
  struct HostCopy {
    std::byte* target;
    const std::byte* source;
    std::size_t size;
  };
  auto copy = std::make_unique<HostCopy>(HostCopy{target, source, size});
  const auto run = [](void* argument) {
    const std::unique_ptr<HostCopy> c(static_cast<HostCopy*>(argument));
    std::memcpy(c->target, c->source, c->size);
  };
  check_action(api_.call_host(handle_, run, copy.get()), "a copy of memory that is not pinned");
  static_cast<void>(copy.release());  // `run` has it
}

void CudaStream::copy_pageable(std::byte* target, const std::byte* source, std::size_t size,
                               CopyDirection direction) {
  if (slot_.empty()) slot_ = pageable_->take_slot();
  check(!slot_.empty(), ErrorCode::out_of_memory,
        "more streams copy memory that is not pinned than the pinned buffer has slots");
  for (std::size_t first = 0; first < size; first += slot_.size()) {
    const std::size_t count = std::min(size - first, slot_.size());
    if (direction == CopyDirection::to_device) {
      copy_on_host(slot_.data(), source + first, count);
      copy(target + first, slot_.data(), count, direction);
    } else {
      copy(slot_.data(), source + first, count, direction);
      copy_on_host(target + first, slot_.data(), count);
    }
  }
}

void CudaStream::upload(DeviceSpan<std::byte> target, std::span<const std::byte> source) {
  SPILLWAY_ASSERT(target.size_bytes() == source.size_bytes());
  copy(target.address(), source.data(), source.size_bytes(), CopyDirection::to_device);
}

void CudaStream::download(std::span<std::byte> target, DeviceSpan<const std::byte> source) {
  SPILLWAY_ASSERT(target.size_bytes() == source.size_bytes());
  copy(target.data(), source.address(), source.size_bytes(), CopyDirection::to_host);
}

void CudaStream::submit(InlineTask task) {
  SPILLWAY_ASSERT(static_cast<bool>(task));
  task();
}

void CudaStream::record(Event& event) {
  check_action(api_.record(cuda_event(event).native(), handle_), "recording an event");
}

void CudaStream::wait(Event& event) {
  check_action(api_.wait(handle_, cuda_event(event).native()), "waiting for an event");
}

void CudaStream::synchronize() { check_action(api_.synchronize(handle_), "its work"); }

}  // namespace spillway::offload::cuda
