#include "offload/memory.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "offload/detail/page_memory.hpp"
#include "runtime/base/error.hpp"

namespace spillway::offload {

void show_to_children(const PinnedMemory& memory) {
  const std::span<std::byte> bytes = memory.host();
  if (bytes.empty() || detail::show_to_children(bytes.data(), bytes.size())) return;
  const int error = errno;
  throw Error(ErrorCode::out_of_memory,
              fmt::format("{} bytes cannot be shared with children of this process: madvise: {}; "
                          "raise vm.max_map_count",
                          bytes.size(), std::strerror(error)),
              error);
}

}  // namespace spillway::offload
