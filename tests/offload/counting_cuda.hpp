// CountingCuda: an adaptor around any CudaApi that counts the calls a step may make and those that
// it may not.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "offload/cuda/detail/cuda_api.hpp"

namespace spillway::offload::cuda {

struct CudaCalls {
  int enqueued = 0;        ///< copies, recordings and waits, on a stream of our own
  int queries = 0;         ///< of events: they do not wait
  int synchronizing = 0;   ///< calls that wait for the GPU, or may: also whatever makes and frees
  int default_stream = 0;  ///< calls on the default stream
};

/// Adds to `calls`, which outlives it.
class CountingCuda final : public CudaApi {
 public:
  CountingCuda(std::unique_ptr<CudaApi> inner, CudaCalls& calls)
      : inner_(std::move(inner)), calls_(calls) {}

  std::string describe(Status status) override { return inner_->describe(status); }
  Status device_count(int& count) override { return waits(), inner_->device_count(count); }
  void versions(int& driver, int& runtime) override { inner_->versions(driver, runtime); }
  Status set_device(int device) override { return waits(), inner_->set_device(device); }
  Status current_device(int& device) override { return inner_->current_device(device); }
  Status current_context(ContextHandle& context) override {
    return inner_->current_context(context);
  }
  Status set_context(ContextHandle context) override { return inner_->set_context(context); }
  Status relax_captures() override { return inner_->relax_captures(); }
  Status properties(int device, CudaDevice& found) override {
    return waits(), inner_->properties(device, found);
  }
  Status free_memory(Bytes& free) override { return waits(), inner_->free_memory(free); }
  Status allocate(void*& address, std::size_t size) override {
    return waits(), inner_->allocate(address, size);
  }
  Status deallocate(void* address) override { return waits(), inner_->deallocate(address); }
  Status device_of(const void* address, int& device) override {
    return inner_->device_of(address, device);
  }
  Status register_host(void* address, std::size_t size) override {
    return waits(), inner_->register_host(address, size);
  }
  Status unregister_host(void* address) override {
    return waits(), inner_->unregister_host(address);
  }
  Status create_stream(StreamHandle& stream, Urgency urgency) override {
    return waits(), inner_->create_stream(stream, urgency);
  }
  Status destroy_stream(StreamHandle stream) override {
    return waits(), inner_->destroy_stream(stream);
  }
  Status synchronize(StreamHandle stream) override { return waits(), inner_->synchronize(stream); }
  Status wait(StreamHandle stream, EventHandle event) override {
    return enqueues(stream), inner_->wait(stream, event);
  }
  Status is_captured(StreamHandle stream, bool& captured) override {
    return inner_->is_captured(stream, captured);
  }
  Status copy(void* target, const void* source, std::size_t size, CopyDirection direction,
              StreamHandle stream) override {
    return enqueues(stream), inner_->copy(target, source, size, direction, stream);
  }
  Status call_host(StreamHandle stream, void (*function)(void*), void* argument) override {
    return enqueues(stream), inner_->call_host(stream, function, argument);
  }
  Status create_event(EventHandle& event) override { return waits(), inner_->create_event(event); }
  Status destroy_event(EventHandle event) override { return waits(), inner_->destroy_event(event); }
  Status record(EventHandle event, StreamHandle stream) override {
    return enqueues(stream), inner_->record(event, stream);
  }
  Status query(EventHandle event) override {
    ++calls_.queries;
    return inner_->query(event);
  }

 private:
  void waits() { ++calls_.synchronizing; }
  void enqueues(StreamHandle stream) {
    ++(stream == nullptr ? calls_.default_stream : calls_.enqueued);
  }

  std::unique_ptr<CudaApi> inner_;
  CudaCalls& calls_;
};

}  // namespace spillway::offload::cuda
