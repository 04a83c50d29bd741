#include "runtime/data/micro_batch.hpp"

#include <algorithm>

namespace spillway::data {

std::uint64_t window_count(const TokenFile& file, std::uint32_t context) {
  return file.size() == 0 ? 0 : (file.size() - 1) / context;
}

void read_window(const TokenFile& file, std::uint64_t first, const MicroBatch& batch,
                 std::size_t row) {
  file.read(first, batch.inputs(row), batch.vocab_size);
  file.read(first + 1, batch.targets(row), batch.vocab_size);
}

void read_windows(const TokenFile& file, std::uint64_t first_window, const MicroBatch& batch) {
  const std::uint64_t windows = window_count(file, batch.context);
  for (std::size_t row = 0; row < batch.rows(); ++row) {
    const std::uint64_t window = first_window + row;
    if (window < windows) {
      read_window(file, window * batch.context, batch, row);
    } else {
      std::ranges::fill(batch.inputs(row), 0);
      std::ranges::fill(batch.targets(row), kIgnoredTarget);
    }
  }
}

}  // namespace spillway::data
