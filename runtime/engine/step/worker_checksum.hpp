// WorkerChecksum: nvme_swap::checksum_of computed by all workers. One at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu_adam/worker_pool.hpp"
#include "nvme_swap/format.hpp"

namespace spillway::engine {

class WorkerChecksum {
 public:
  /// Serves up to `most` bytes. `workers` outlives this.
  WorkerChecksum(cpu_adam::WorkerPool& workers, std::uint64_t most)
      : workers_(workers), pieces_(nvme_swap::checksum_pieces(most)) {}

  /// Returns nvme_swap::checksum_of `data`. Inside a worker's task only.
  [[nodiscard]] std::uint64_t of(std::span<const std::byte> data) {
    const auto pieces = std::span(pieces_).first(nvme_swap::checksum_pieces(data.size()));
    workers_.parallel_for(pieces.size(), 1, [&](std::size_t first, std::size_t last) {
      for (std::size_t piece = first; piece < last; ++piece) {
        pieces[piece] = nvme_swap::checksum_of_piece(data, piece);
      }
    });
    return nvme_swap::combine_checksums(pieces);
  }

 private:
  cpu_adam::WorkerPool& workers_;
  std::vector<std::uint64_t> pieces_;  // of the checksum under way
};

}  // namespace spillway::engine
