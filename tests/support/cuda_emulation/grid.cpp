// What it does stands for hardware: to be compiled without sanitizers.
#include "tests/support/cuda_emulation/grid.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cfenv>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "runtime/base/simd/flush_denormals.hpp"
#include "tests/support/cuda_emulation/fiber.hpp"
#include "tests/support/cuda_emulation/include/cuda_runtime.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_emulation {

void fault(const char* format, ...) {
  std::fputs("cuda_emulation: fault: ", stderr);
  std::va_list values;
  va_start(values, format);
  std::vfprintf(stderr, format, values);
  va_end(values);
  std::fputc('\n', stderr);
  std::abort();
}

namespace {

struct Barrier {
  unsigned arrived = 0;
  std::source_location site;
  std::array<char, 2> tokens{};  ///< of this use and the next, for ThreadSanitizer
  unsigned uses = 0;
};

struct Thread {
  Context* fiber = nullptr;  ///< while it has started and not ended
  Barrier* waits = nullptr;
  unsigned exchanges = 0;
};

/// Spelled so that no library function is called, which ThreadSanitizer would watch: to the threads
/// of the block, nobody has written what they find.
void fill_undefined(std::byte* first, const std::byte* end) {
  for (volatile std::byte* at = first; at != end; ++at) *at = std::byte{0xff};
}

/// The shared memory ends where the process has none: an overrun is found by the hardware.
class SharedMemory {
 public:
  SharedMemory() {
    void* const memory = ::mmap(nullptr, kBytes + kGuard, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fault("no memory for shared memory");
    end_ = static_cast<std::byte*>(memory) + kBytes;
    ::mprotect(end_, kGuard, PROT_NONE);
  }
  void start_block(std::size_t bytes) {
    if (lowest_ != nullptr) forget_accesses(lowest_, static_cast<std::size_t>(end_ - lowest_));
    first_ = end_ - (bytes + 15) / 16 * 16;
    fill_undefined(first_, end_);
    objects_ = 0;
    lowest_ = first_;
  }
  [[nodiscard]] std::byte* first() const { return first_; }
  void* object(const void* type, std::size_t size, std::size_t alignment) {
    std::size_t known = 0;
    while (known < objects_ && types_[known] != type) ++known;
    if (known == objects_) {
      std::byte* const first = lowest_ - size;
      lowest_ = first - reinterpret_cast<std::uintptr_t>(first) % alignment;
      const auto bytes = static_cast<std::size_t>(end_ - lowest_);
      if (known == kMostObjects || bytes > kMostSharedMemory) {
        fault("a block has %zu objects and %zu bytes of shared memory", known + 1, bytes);
      }
      fill_undefined(lowest_, lowest_ + size);
      types_[objects_] = type;
      addresses_[objects_++] = lowest_;
    }
    return addresses_[known];
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{256} << 10;
  static constexpr std::size_t kGuard = std::size_t{64} << 10;
  static constexpr std::size_t kMostObjects = 8;
  std::byte* end_;
  std::byte* first_ = nullptr;
  std::byte* lowest_ = nullptr;
  std::array<const void*, kMostObjects> types_{};
  std::array<std::byte*, kMostObjects> addresses_{};
  std::size_t objects_ = 0;
};

/// What the compiler of a kernel chose: denormals are zero, or they are kept.
class FloatingPoint {
 public:
  explicit FloatingPoint(bool flushes_denormals) {
    if (flushes_denormals) {
      flush_.emplace();
    } else {
      std::fegetenv(&saved_);
      std::fesetenv(FE_DFL_ENV);
    }
  }
  ~FloatingPoint() {
    if (!flush_) std::fesetenv(&saved_);
  }
  FloatingPoint(const FloatingPoint&) = delete;
  FloatingPoint& operator=(const FloatingPoint&) = delete;

 private:
  std::optional<spillway::simd::FlushDenormals> flush_;
  std::fenv_t saved_{};
};

/// The block that runs.
class Block {
 public:
  /// Nothing is allocated on a fiber but what the fiber alone uses.
  Block() {
    ready_.reserve(kMostThreads);
    fibers_.reserve(kMostThreads);
  }
  void run_grid(const GridSize& size, std::uint64_t order, const std::function<void()>& body);
  /// Of `count` threads from `first` on.
  void barrier(Barrier& barrier, unsigned first, unsigned count, const std::source_location& site);
  void fiber_loop();

  std::array<Thread, kMostThreads> threads;
  std::array<std::array<std::uint64_t, kMostThreads>, 2> slots{};
  Barrier all;
  std::array<Barrier, kMostThreads / kWarpThreads> warps;
  SharedMemory shared;

 private:
  void run_block();
  void run_thread(unsigned number);
  void leave(Context& self);
  [[nodiscard]] Context* idle_fiber();
  [[nodiscard]] unsigned number_of(unsigned started) const {
    const unsigned turned = (started + rotation_) % blockDim.x;
    return downwards_ ? blockDim.x - 1 - turned : turned;
  }

  std::mt19937_64 random_;
  const std::function<void()>* body_ = nullptr;
  unsigned rotation_ = 0;
  bool downwards_ = false;
  bool resumes_first_ = false;  ///< threads that may go on do so before others start
  unsigned started_ = 0;
  unsigned ended_ = 0;
  std::vector<unsigned> ready_;
  std::array<Context*, kMostThreads> idle_{};  ///< a ring
  unsigned idle_first_ = 0;
  unsigned idle_count_ = 0;
  std::vector<std::unique_ptr<Context>> fibers_;
  Context* scheduler_ = nullptr;
  Context* running_ = nullptr;
  char start_token_ = 0;
  char end_token_ = 0;
};

bool same(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

Block& block() {
  static Block* const one = new Block;
  return *one;
}

void Block::run_grid(const GridSize& size, std::uint64_t order, const std::function<void()>& body) {
  const FloatingPoint mode(size.flushes_denormals);
  Context caller;
  scheduler_ = running_ = &caller;
  body_ = &body;
  random_.seed(order);
  gridDim = dim3(static_cast<unsigned>(size.blocks));
  blockDim = dim3(size.threads);
  const std::uint64_t first = random_() % size.run;
  const bool downwards = random_() % 2 == 0;
  for (std::uint64_t i = 0; i < size.run; ++i) {
    const std::uint64_t turned = (first + i) % size.run;
    const std::uint64_t number = downwards ? size.run - 1 - turned : turned;
    const std::uint64_t left_out = number < size.run / 2 ? 0 : size.blocks - size.run;
    blockIdx.x = static_cast<unsigned>(number + left_out);
    shared.start_block(size.shared_bytes);
    run_block();
  }
  acquire(&end_token_);
}

void Block::run_block() {
  rotation_ = static_cast<unsigned>(random_() % blockDim.x);
  downwards_ = random_() % 2 == 0;
  resumes_first_ = random_() % 2 == 0;
  started_ = ended_ = 0;
  release(&start_token_);
  while (ended_ < blockDim.x) {
    const unsigned before = ended_ + started_;
    leave(*scheduler_);
    if (ended_ + started_ != before || !ready_.empty()) continue;
    for (unsigned i = 0; i < blockDim.x; ++i) {
      if (threads[i].waits == nullptr) continue;
      const Barrier& at = *threads[i].waits;
      fault(
          "thread %u of block %u waits at %s:%u for threads that have ended or wait elsewhere (%u "
          "of the block have ended, %u are at that barrier)",
          i, blockIdx.x, at.site.file_name(), at.site.line(), ended_, at.arrived);
    }
    fault("block %u does not go on", blockIdx.x);
  }
}

/// Goes on with a thread that may, on a fiber that starts another, or in the scheduler where there
/// is neither.
void Block::leave(Context& self) {
  Context* next = scheduler_;
  const bool starts = started_ < blockDim.x;
  if (!ready_.empty() && (resumes_first_ || !starts)) {
    const unsigned number = ready_.back();
    ready_.pop_back();
    threadIdx.x = number;
    next = threads[number].fiber;
  } else if (starts) {
    next = idle_fiber();
  }
  if (next == &self) return;
  running_ = next;
  self.change_to(*next);
}

/// A fiber orders the threads that it runs one after the other: each has its own where that would
/// be taken for an order of the kernel's.
Context* Block::idle_fiber() {
  const std::size_t wanted = fibers_are_watched() ? blockDim.x : 1;
  if (idle_count_ == 0 || fibers_.size() < wanted) {
    fibers_.push_back(std::make_unique<Context>([] { block().fiber_loop(); }));
    return fibers_.back().get();
  }
  --idle_count_;
  return idle_[idle_first_++ % kMostThreads];
}

void Block::fiber_loop() {
  Context& self = *running_;
  for (;;) {
    do {
      run_thread(number_of(started_++));
    } while (started_ < blockDim.x && !fibers_are_watched() && (ready_.empty() || !resumes_first_));
    idle_[(idle_first_ + idle_count_++) % kMostThreads] = &self;
    leave(self);
  }
}

void Block::run_thread(unsigned number) {
  threadIdx.x = number;
  Thread& thread = threads[number];
  thread = {.fiber = running_, .waits = nullptr, .exchanges = 0};
  acquire(&start_token_);
  (*body_)();
  release(&end_token_);
  threads[number].fiber = nullptr;
  ++ended_;
}

void Block::barrier(Barrier& barrier, unsigned first, unsigned count,
                    const std::source_location& site) {
  const unsigned number = threadIdx.x;
  if (barrier.arrived == 0) barrier.site = site;
  if (!same(barrier.site, site)) {
    fault("thread %u of block %u is at the barrier %s:%u and others at %s:%u", number, blockIdx.x,
          site.file_name(), site.line(), barrier.site.file_name(), barrier.site.line());
  }
  char* const token = &barrier.tokens[barrier.uses % 2];
  release(token);
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    ++barrier.uses;
    for (unsigned i = 0; i < count; ++i) {
      const unsigned other = first + (downwards_ ? i : count - 1 - i);
      if (other == number) continue;
      threads[other].waits = nullptr;
      ready_.push_back(other);
    }
  } else {
    threads[number].waits = &barrier;
    leave(*threads[number].fiber);
  }
  acquire(token);
}

}  // namespace

void run_grid(const GridSize& size, std::uint64_t order, const std::function<void()>& thread) {
  block().run_grid(size, order, thread);
}

std::byte* shared_memory() { return block().shared.first(); }

void* shared_object(const void* type, std::size_t size, std::size_t alignment) {
  return block().shared.object(type, size, alignment);
}

void block_barrier(const std::source_location& site) {
  block().barrier(block().all, 0, blockDim.x, site);
}

void warp_barrier(const std::source_location& site) {
  const unsigned warp = threadIdx.x / kWarpThreads;
  const unsigned first = warp * kWarpThreads;
  block().barrier(block().warps[warp], first, std::min(kWarpThreads, blockDim.x - first), site);
}

std::uint64_t exchange(std::uint64_t bits, unsigned from, const std::source_location& site) {
  const unsigned number = threadIdx.x;
  // Two rows of slots: nobody writes one again before everybody has read it.
  auto& slots = block().slots[block().threads[number].exchanges++ % 2];
  slots[number] = bits;
  warp_barrier(site);
  return slots[number / kWarpThreads * kWarpThreads + from];
}

}  // namespace cuda_emulation
