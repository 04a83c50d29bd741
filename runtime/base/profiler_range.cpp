#include "runtime/base/profiler_range.hpp"

#ifdef SPILLWAY_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace spillway {

#ifdef SPILLWAY_NVTX

void push_profiler_range(const char* name) noexcept { nvtxRangePushA(name); }
void pop_profiler_range() noexcept { nvtxRangePop(); }

std::uint64_t start_profiler_range(const char* name) noexcept { return nvtxRangeStartA(name); }
void end_profiler_range(std::uint64_t range) noexcept { nvtxRangeEnd(range); }

#else

void push_profiler_range(const char* /*name*/) noexcept {}
void pop_profiler_range() noexcept {}

std::uint64_t start_profiler_range(const char* /*name*/) noexcept { return 0; }
void end_profiler_range(std::uint64_t /*range*/) noexcept {}

#endif

}  // namespace spillway
