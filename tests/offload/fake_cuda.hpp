// FakeCuda: CUDA's runtime on the heap. Work waits in its stream's queue until somebody asks about
// it, and is then done one operation a question: what is not ordered by events happens in an order
// that nobody would have chosen. It refuses what the real one would do synchronously or wrongly.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "offload/cuda/detail/cuda_api.hpp"

namespace spillway::offload::cuda {

/// What the machine is said to have, and which calls are to fail.
struct FakeMachine {
  int devices = 1;
  int driver_version = 13000;
  int compute_major = 9;
  int memory_device = 0;  ///< in whose memory everything is said to lie
  Status count_status = kSuccess;
  Status allocate_status = kSuccess;
  Status register_status = kSuccess;
  std::size_t most_registered = ~std::size_t{0};  ///< in one call
  std::size_t register_room = ~std::size_t{0};    ///< in all calls
  Status query_status = kSuccess;                 ///< of an event whose work is done
  bool captures = false;                          ///< what all streams are given, into a graph
  Status end_status = kSuccess;                   ///< of what is freed and destroyed nevertheless
};

class FakeCuda final : public CudaApi {
 public:
  static constexpr Status kInvalidValue = 1;

  explicit FakeCuda(const FakeMachine& machine = {}) : machine_(machine) {}
  /// Whatever was made was destroyed.
  ~FakeCuda() override;

  [[nodiscard]] FakeMachine& machine() { return machine_; }
  /// On how many devices CUDA was started.
  [[nodiscard]] std::size_t started() const { return contexts_.size(); }

  std::string describe(Status status) override;
  Status device_count(int& count) override;
  void versions(int& driver, int& runtime) override;
  Status set_device(int device) override;
  Status current_device(int& device) override;
  Status current_context(ContextHandle& context) override;
  Status set_context(ContextHandle context) override;
  Status relax_captures() override;
  Status properties(int device, CudaDevice& found) override;
  Status free_memory(Bytes& free) override;
  Status allocate(void*& address, std::size_t size) override;
  Status deallocate(void* address) override;
  Status device_of(const void* address, int& device) override;
  Status register_host(void* address, std::size_t size) override;
  Status unregister_host(void* address) override;
  Status create_stream(StreamHandle& stream, Urgency urgency) override;
  Status destroy_stream(StreamHandle stream) override;
  Status synchronize(StreamHandle stream) override;
  Status wait(StreamHandle stream, EventHandle event) override;
  Status is_captured(StreamHandle stream, bool& captured) override;
  Status copy(void* target, const void* source, std::size_t size, CopyDirection direction,
              StreamHandle stream) override;
  Status call_host(StreamHandle stream, void (*function)(void*), void* argument) override;
  Status create_event(EventHandle& event) override;
  Status destroy_event(EventHandle event) override;
  Status record(EventHandle event, StreamHandle stream) override;
  Status query(EventHandle event) override;

 private:
  struct QueuedStream;
  /// A recording of an event: everything up to `position` of `stream`. Null: never recorded.
  struct Recording {
    QueuedStream* stream = nullptr;
    std::uint64_t position = 0;
  };
  /// A copy, a function of the host, or (with neither) a wait.
  struct Operation {
    void* target = nullptr;
    const void* source = nullptr;
    std::size_t size = 0;
    void (*function)(void*) = nullptr;
    void* argument = nullptr;
    Recording awaited;
  };
  struct QueuedStream {
    std::vector<Operation> operations;  ///< those after `base`
    std::uint64_t base = 0;
    std::uint64_t completed = 0;
  };
  struct Allocation {
    std::unique_ptr<std::byte[]> memory;
    std::size_t size = 0;
  };

  static void run_until(QueuedStream& stream, std::uint64_t position);
  [[nodiscard]] bool on_device(const void* address, std::size_t size) const;
  [[nodiscard]] bool registered(const void* address, std::size_t size) const;

  FakeMachine machine_;
  std::deque<int> contexts_;  ///< of the devices on which CUDA was started
  int* current_ = nullptr;    ///< one of them
  std::map<const std::byte*, Allocation> allocations_;
  std::map<const std::byte*, std::size_t> registered_;
  std::deque<QueuedStream> streams_;  ///< kept to the end: events speak of them
  std::deque<Recording> events_;
  int streams_alive_ = 0;
  int events_alive_ = 0;
};

}  // namespace spillway::offload::cuda
