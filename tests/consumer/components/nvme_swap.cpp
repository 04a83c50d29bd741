// A tile that goes to a file and comes back.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "nvme_swap/tile_store.hpp"
#include "runtime/base/error.hpp"

int main() {
  using namespace spillway;
  constexpr std::size_t kBytes = 2 * kPageBytes;
  const std::unique_ptr<void, decltype(&std::free)> pages(
      std::aligned_alloc(kPageBytes, 2 * kBytes), &std::free);
  const std::span<std::byte> source(static_cast<std::byte*>(pages.get()), kBytes);
  const std::span<std::byte> target(source.data() + kBytes, kBytes);
  std::ranges::fill(source, std::byte{7});
  try {
    nvme_swap::StoreOptions options;
    options.directories = {"."};
    options.name = "component";
    options.remove_on_close = true;
    const auto store = nvme_swap::TileStore::create(options, {.tiles = {Bytes{kBytes}}});
    store->write(TileIndex{0}, source, nvme_swap::checksum_of(source)).wait();
    store->read(TileIndex{0}, target).wait();
    store->verify(TileIndex{0}, target);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::printf("%d\n", static_cast<int>(target.back()));
}
