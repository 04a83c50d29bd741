// Ranges for NVIDIA's profilers (NVTX), named like the plan's ops, so that a profile reads like the
// plan. Without a profiler attached, or in a build without NVTX, they cost a test of a pointer.
// Any thread.
#pragma once

#include <cstdint>

namespace spillway {

/// Begins a range within this thread's, for kernels launched meanwhile.
void push_profiler_range(const char* name) noexcept;
void pop_profiler_range() noexcept;

/// What this thread does between construction and end.
class ProfilerRange {
 public:
  explicit ProfilerRange(const char* name) noexcept { push_profiler_range(name); }
  ~ProfilerRange() { pop_profiler_range(); }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

/// Starts a range that may end on another thread, or beside others of this one.
[[nodiscard]] std::uint64_t start_profiler_range(const char* name) noexcept;
void end_profiler_range(std::uint64_t range) noexcept;

}  // namespace spillway
