// XXH3-64 through libxxhash, with the widest vectors of the processor where the library was built
// with its dispatcher; the value does not depend on that.
#ifdef SPILLWAY_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include "nvme_swap/format.hpp"

namespace spillway::nvme_swap {

std::uint64_t checksum_of(std::span<const std::byte> data) {
#ifdef SPILLWAY_XXHASH_DISPATCH
  return XXH3_64bits_dispatch(data.data(), data.size());
#else
  return XXH3_64bits(data.data(), data.size());
#endif
}

}  // namespace spillway::nvme_swap
