// What the emulated libraries of NVIDIA's share: elements as fp32, operands that are looked at
// before work is put on a stream, and a workspace that is undefined before and after.
#pragma once

#include <cstdint>
#include <functional>

#include "tests/support/cuda_emulation/include/cuda_runtime_api.h"

namespace cuda_emulation {

[[nodiscard]] std::size_t element_bytes(cudaDataType_t type);
[[nodiscard]] float load(cudaDataType_t type, const void* base, std::uint64_t index);
/// Rounds to nearest, ties to even.
void store(cudaDataType_t type, void* base, std::uint64_t index, float value);

struct Workspace {
  void* address = nullptr;
  std::size_t size = 0;
};

/// `work` runs on the stream between two writings of the workspace's ends.
void enqueue_call(cudaStream_t stream, const Workspace& workspace, std::function<void()> work);

/// Aborts unless all of it is device memory that starts at a multiple of `alignment`.
void expect_operand(const char* what, const void* address, std::size_t size, std::size_t alignment);

}  // namespace cuda_emulation
