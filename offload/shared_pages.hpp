// SharedPages: pages of a file that several processes map, such as one of memfd_create: memory that
// they have in common. Plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/units.hpp"

namespace spillway::offload {

/// Pages in a row. Both are multiples of kPageBytes.
struct FilePages {
  std::uint64_t first = 0;  ///< in the file
  std::uint64_t bytes = 0;
};

struct SharedPages {
  int file = -1;                 ///< descriptor, which may be closed once the pages are mapped
  std::vector<FilePages> parts;  ///< as they lie one behind the other in memory

  [[nodiscard]] Bytes bytes() const {
    Bytes all;
    for (const FilePages& part : parts) all += Bytes{part.bytes};
    return all;
  }
};

}  // namespace spillway::offload
