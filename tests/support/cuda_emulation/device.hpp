// The emulated devices: their memory, the host memory that they may copy, and their streams.
// Everything is called with the one lock of all of them held.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <vector>

#include "tests/support/cuda_emulation/emulation.hpp"
#include "tests/support/cuda_emulation/include/cuda_runtime_api.h"

namespace cuda_emulation {

namespace nccl {
struct Member;
}

/// What a recorded event stands for. Done once its stream has come to it.
struct Mark {
  CUstream_st* stream = nullptr;
  bool done = false;
  std::chrono::steady_clock::time_point when;
};

struct Operation {
  std::function<void()> work = {};   ///< none: a record or a wait
  std::function<bool()> ready = {};  ///< what another rank has a part in: asked until it says yes
  const nccl::Member* member = nullptr;  ///< whose part that is
  std::shared_ptr<Mark> records = {};
  std::shared_ptr<Mark> waits = {};
  const void* host = nullptr;  ///< pinned memory that it reads or writes
  std::size_t host_size = 0;
  std::uint64_t number = 0;  ///< of all operations
};

}  // namespace cuda_emulation

struct CUstream_st {
  int device = 0;
  int priority = 0;
  std::deque<cuda_emulation::Operation> operations;
  bool held = false;      ///< runs nothing, as behind a kernel that does not end
  bool captured = false;  ///< its work goes into a graph
};
struct CUevent_st {
  int device = 0;
  std::shared_ptr<cuda_emulation::Mark> last;  ///< null: never recorded
};

namespace cuda_emulation {

class Memory {
 public:
  static constexpr std::size_t kTotal = std::size_t{16} << 30;

  /// Null where not enough is left on the current device.
  [[nodiscard]] std::byte* allocate(std::size_t size);
  /// False if `address` was not allocated.
  [[nodiscard]] bool free(void* address);
  /// What of the current device is.
  [[nodiscard]] std::size_t used() const;
  /// Whether all of it lies in one allocation.
  [[nodiscard]] bool holds(const void* address, std::size_t size) const {
    return device_of(address, size) >= 0;
  }
  /// The device on which it does; -1: none.
  [[nodiscard]] int device_of(const void* address, std::size_t size) const;

  [[nodiscard]] cudaError_t pin(void* address, std::size_t size);
  [[nodiscard]] bool unpin(void* address, std::size_t& size);
  [[nodiscard]] bool pinned(const void* address, std::size_t size) const;
  std::uint64_t most_pinned = ~std::uint64_t{0};

 private:
  struct Allocation {
    std::size_t size;
    std::byte* mapping;
    std::size_t mapped;
    int device;
  };
  struct Mapping {
    std::byte* address;
    std::size_t size;
  };
  std::map<std::uintptr_t, Allocation> allocations_;
  std::map<std::uintptr_t, std::size_t> pinned_;
  std::deque<Mapping> freed_;  ///< kept out of reach
};

/// The calling thread's.
[[nodiscard]] int& current_device();
/// Makes the device's context current, and there if need be.
void start_device(int number);
/// Whether the thread has relaxed for itself what is forbidden while another one captures a graph.
[[nodiscard]] bool may_disturb_captures();

class Device {
 public:
  /// The device's lock, held as long as this object lives.
  class Lock {
   public:
    Lock() : lock_(instance().mutex_) {}
    Device* operator->() const { return &instance(); }

   private:
    std::lock_guard<std::recursive_mutex> lock_;
  };

  void set_order(std::uint64_t seed);
  int devices = 1;
  bool integrated = false;
  [[nodiscard]] std::uint64_t random() { return random_(); }

  [[nodiscard]] CUstream_st* create_stream();
  /// Made when it is first asked for, and never destroyed.
  [[nodiscard]] CUstream_st* default_stream(int device);
  [[nodiscard]] bool has(const CUstream_st* stream) const;
  /// Whether work of any stream goes into a graph.
  [[nodiscard]] bool captures() const;
  void destroy_stream(CUstream_st* stream);

  void enqueue(CUstream_st& stream, Operation operation);
  void record(CUevent_st& event, CUstream_st& stream);
  // Other threads go on while these wait for them.
  void finish(CUstream_st& stream);
  void finish(const Mark& mark);
  /// All streams of one device.
  void finish_all(int device);
  /// Runs what may run of the stream. Returns what it stands still at; null: nothing is left, or
  /// the stream is held.
  [[nodiscard]] const Operation* run_to_obstacle(CUstream_st& stream);
  /// Something has changed that a stream may wait for.
  void announce() { changed_.notify_all(); }
  std::uint64_t discard();
  void refuse_to_block() { never_blocks_ = true; }
  /// A caller that asks again and again learns of the end at last.
  [[nodiscard]] bool query(const Mark& mark);
  /// Whether an operation that has not run needs any of this host memory.
  [[nodiscard]] bool needs(const void* host, std::size_t size) const;

  Memory memory;
  std::map<const void*, std::size_t> shared_memory_allowed;  ///< of a kernel
  std::map<const void*, const char*> kernel_names;           ///< of those that were launched
  std::set<int> started;                                     ///< devices that have a context
  Statistics statistics;
  std::uint64_t blocks_at_ends = 0;  ///< of a grid, which are those that run; 0: all run
  cudaError_t broken = cudaSuccess;

 private:
  Device();
  static Device& instance();
  [[nodiscard]] static bool may_run(const CUstream_st& stream);
  void run_one(CUstream_st& stream);
  // False where that takes what another thread has yet to do.
  /// What the first operation waits for, and then that.
  [[nodiscard]] bool run_first(CUstream_st& stream);
  [[nodiscard]] bool try_finish(CUstream_st& stream);
  [[nodiscard]] bool try_finish(const Mark& mark);
  /// Some of what may run, as the order has it.
  void run_some();
  bool run_any();

  std::recursive_mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<std::unique_ptr<CUstream_st>> streams_;
  std::map<int, CUstream_st*> default_streams_;  ///< by device
  std::mt19937_64 random_;
  std::uint64_t order_ = late;
  unsigned eagerness_ = 0;  ///< of 8 calls, how many let something run
  bool never_blocks_ = false;
  std::uint64_t enqueued_ = 0;
  std::uint64_t newest_run_ = 0;
};

}  // namespace cuda_emulation
