// HugeArray: zeroed memory of a benchmark, on huge pages where the system has them.
#pragma once

#include <cstddef>
#include <span>

namespace spillway::bench {

/// Owns one anonymous mapping. Pages appear, on the node of the thread, when they are first
/// touched.
class HugeArray {
 public:
  /// Starts `offset` bytes behind a huge page's start. Throws `Error{out_of_memory}`.
  explicit HugeArray(std::size_t bytes, std::size_t offset = 0);
  ~HugeArray();
  HugeArray(const HugeArray&) = delete;
  HugeArray& operator=(const HugeArray&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  std::size_t mapped_;
  std::byte* mapping_;
  std::byte* data_;
};

}  // namespace spillway::bench
