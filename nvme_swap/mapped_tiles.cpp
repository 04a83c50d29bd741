#include "nvme_swap/mapped_tiles.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "runtime/base/error.hpp"

namespace spillway::nvme_swap {

MappedTiles::MappedTiles(std::span<const TilePlace> places) {
  tiles_.reserve(places.size());
  for (const TilePlace& place : places) {
    void* const address =
        ::mmap(nullptr, place.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE,
               place.file, static_cast<off_t>(place.offset.value()));
    if (address == MAP_FAILED) {
      const int failed = errno;
      const MappedTiles mapped(std::move(*this));  // which go
      throw_errno(failed, "map a tile of a swap file");
    }
    tiles_.emplace_back(static_cast<std::byte*>(address), place.bytes);
  }
}

MappedTiles::MappedTiles(MappedTiles&& other) noexcept : tiles_(std::exchange(other.tiles_, {})) {}

MappedTiles& MappedTiles::operator=(MappedTiles&& other) noexcept {
  std::swap(tiles_, other.tiles_);
  return *this;
}

MappedTiles::~MappedTiles() {
  for (const std::span<std::byte> tile : tiles_) ::munmap(tile.data(), tile.size());
}

}  // namespace spillway::nvme_swap
