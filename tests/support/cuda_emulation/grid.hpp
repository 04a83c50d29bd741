// The grid of one kernel on one thread of the CPU: a fiber for each CUDA thread of a block, one
// block after the other. A block's shared memory is undefined when it starts.
//
// The program is aborted, with the reason on stderr, where a thread ends or waits elsewhere while
// others wait for it at a barrier. Threads: one grid at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace cuda_emulation {

inline constexpr unsigned kWarpThreads = 32;
inline constexpr unsigned kMostThreads = 1024;
/// Of an H100: what a kernel has without asking, and what it may ask for.
inline constexpr std::size_t kSharedMemory = std::size_t{48} << 10;
inline constexpr std::size_t kMostSharedMemory = std::size_t{227} << 10;

struct GridSize {
  std::uint64_t blocks;
  std::uint64_t
      run;  ///< of the blocks: half of them at the grid's beginning, the others at its end
  unsigned threads;
  std::size_t shared_bytes;
  bool flushes_denormals;
};

/// Runs `thread` as every thread of the grid. `order` chooses in which order blocks and threads
/// start and go on after a barrier.
void run_grid(const GridSize& size, std::uint64_t order, const std::function<void()>& thread);

/// Prints what is wrong and aborts the program.
[[noreturn]] void fault(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace cuda_emulation
