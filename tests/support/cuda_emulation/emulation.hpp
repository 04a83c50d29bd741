// CUDA on the CPU, for tests: devices whose streams run what they hold as late as they may, as
// early as they may, or in an order that a seed chooses among those that streams and events allow.
// The product is built on it from its own sources (CMakeLists.txt); `kernel.cuh` is the seam.
//
// What CUDA leaves undefined ends the program, with the reason on stderr: an asynchronous copy of
// pageable memory, an operand outside of the device's memory, a thread that ends while others wait
// for it. Device memory is undefined at first (0xff: NaN) and out of reach when it is freed.
// Threads: any; one call at a time has an effect.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cuda_emulation {

/// How the streams run. SPILLWAY_CUDA_EMULATION_SEED in the environment chooses at first, else
/// `late`. Any other value is the seed of an order.
enum Order : std::uint64_t {
  late = 0,   ///< nothing runs before something waits for it
  early = 1,  ///< everything runs as soon as it may
};

/// From here on; the streams are idle.
void set_order(std::uint64_t seed);

/// The machine has so many devices from here on; at first as many as
/// SPILLWAY_CUDA_EMULATION_DEVICES in the environment says, else one. Each thread has a current
/// one, and a stream and its operands are of one device.
void set_devices(int count);

/// So many bytes of host memory are pinned at most from here on; at first as many as
/// SPILLWAY_CUDA_EMULATION_PINNED in the environment says, else all.
void limit_pinned(std::uint64_t bytes);

/// The devices say from here on whether their memory is the host's.
void set_integrated(bool integrated);

struct Statistics {
  std::uint64_t kernels = 0;
  std::uint64_t blocks = 0;
  std::uint64_t copies = 0;
  std::uint64_t host_functions = 0;
  std::uint64_t products = 0;
  std::uint64_t overtaken = 0;     ///< operations that ran before an earlier one of another stream
  std::uint64_t most_pending = 0;  ///< operations that a stream has held at a time
};
[[nodiscard]] Statistics statistics();

/// A stream of CUDA holds about a thousand operations. What is put on a full one blocks its thread
/// until the first has run.
inline constexpr std::uint64_t kMostPending = 1000;
/// From here on that ends the program, as it does with SPILLWAY_CUDA_EMULATION_NEVER_BLOCKS in the
/// environment: the control thread must not wait.
void refuse_to_block();

/// What has yet to run never will. Returns how many operations that were.
std::uint64_t discard_pending();

/// Of later grids only the first `count` blocks run and the last `count`; 0: all of them.
void run_blocks_at_ends(std::uint64_t count);

/// Every later call of the runtime returns `status`, as after a kernel that failed.
void break_device(int status);

/// Returns the stream behind the null handle of a device, a cudaStream_t. Another framework may
/// compute on it; that the product puts work on the null handle ends the program. No other stream
/// waits for it, nor it for them: all are made with cudaStreamNonBlocking.
[[nodiscard]] void* default_stream(int device);

/// Whether CUDA has a context on the device: memory and time that a process spends on it.
[[nodiscard]] bool is_started(int device);

/// The stream, a cudaStream_t, says from here on whether it is captured into a graph. Calls that
/// might disturb that are refused in all threads that have not relaxed it for themselves.
void capture_stream(void* stream, bool captured);

/// The stream, a cudaStream_t, runs nothing from here on, as behind a kernel that does not end.
void hold_stream(void* stream);
void let_go_of_stream(void* stream);

/// NCCL tells the rank of an error, an ncclResult_t, from here on, and what the rank has on its
/// streams does not end. It is so in groups of `ranks` alone, or in all of them: 0.
void fail_nccl(int rank, int result, int ranks = 0);
/// Nothing that ranks put on their streams ends, and NCCL does not know it.
void lose_nccl();
/// Undoes both.
void mend_nccl();
/// NCCL says on this thread that it is of another version: 22809 for 2.28.9.
void pretend_nccl(int version);

/// cuDNN refuses every later shape with `reason`; null: it takes them again.
void refuse_attention(const char* reason);

}  // namespace cuda_emulation
