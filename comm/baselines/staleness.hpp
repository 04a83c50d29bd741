// Staleness: how old the values are from which workers of a parameter server compute, and which
// worker may push next so that no push is staler than a bound. Pure; the server's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace spillway::comm {

/// The staleness of a push is the number of other workers' pushes that the server has applied since
/// its worker has pulled. Workers are numbered from 0.
class Staleness {
 public:
  /// Takes a `bound` of at least `workers` - 1: when all have pulled the same, one is the last.
  Staleness(std::size_t workers, std::uint32_t bound);

  /// Begins with the newest values at all workers, which push `pushes` times each.
  void begin(std::uint32_t pushes);

  [[nodiscard]] bool is_over() const { return left_of_all_ == 0; }
  /// Number of pushes that the worker has left.
  [[nodiscard]] std::uint32_t left(std::size_t worker) const { return workers_[worker].left; }
  /// Whether, after a push of this worker, all others that will push can still do so in time, in
  /// the order in which they have pulled. Some worker always may.
  [[nodiscard]] bool may_push(std::size_t worker) const;
  /// Records a push of the worker, which then pulls, and returns the staleness of the push.
  std::uint32_t push(std::size_t worker);

 private:
  struct Worker {
    std::uint64_t pulled = 0;  ///< how many pushes had been applied then
    std::uint32_t left = 0;
  };

  std::vector<Worker> workers_;
  const std::uint32_t bound_;
  std::uint64_t applied_ = 0;
  std::uint64_t left_of_all_ = 0;
};

}  // namespace spillway::comm
