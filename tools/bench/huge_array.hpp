// HugeArray: zeroed memory of a benchmark, on huge pages where the system has them.
#pragma once

#include <cstddef>
#include <span>

namespace spillway::bench {

/// Owns one anonymous mapping. Pages appear, on the node of the thread, when they are first
/// touched.
class HugeArray {
 public:
  /// Throws `Error{out_of_memory}`.
  explicit HugeArray(std::size_t bytes);
  ~HugeArray();
  HugeArray(const HugeArray&) = delete;
  HugeArray& operator=(const HugeArray&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  std::size_t size_;
  std::byte* data_;
};

}  // namespace spillway::bench
