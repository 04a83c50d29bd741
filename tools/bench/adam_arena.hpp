// AdamArena: memory that updates are measured on. Two slots of state and 16-bit parameters and a
// gradient, as a run lays them out, or with any distance between the arrays.
#pragma once

#include <vector>

#include "cpu_adam/adam.hpp"
#include "cpu_adam/worker_pool.hpp"
#include "runtime/base/units.hpp"
#include "tools/bench/huge_array.hpp"

namespace spillway::bench {

class AdamArena {
 public:
  /// Makes `count` parameters in tiles of `tile`, each with a layout of its own; 0: one tile.
  AdamArena(const cpu_adam::Kernel& kernel, std::size_t count, std::size_t tile);

  /// Has the memory touched first by the workers that will use each page, then values: gradients
  /// and masters of ordinary size, moments zero. The same values every few leaves: only their kind
  /// matters.
  void fill(cpu_adam::WorkerPool& pool);
  /// Gives, in slot 0 and fp32 moments only, every `period`-th leaf values below the normal range.
  void make_denormal(cpu_adam::WorkerPool& pool, std::size_t period);

  /// The slot to read and the slot to write.
  struct Slots {
    std::size_t from = 0;
    std::size_t to = 0;
  };
  [[nodiscard]] std::size_t tiles() const { return (count_ + tile_ - 1) / tile_; }
  [[nodiscard]] cpu_adam::UpdateRange range(Slots slots, std::size_t tile) const;

  /// Returns all parameters as whole arrays, each starting `skew` bytes further into a huge page
  /// than the one before. In place, in the memory of slot 1, whose content is lost.
  [[nodiscard]] cpu_adam::UpdateRange skewed(std::size_t skew) const;

  /// Calls body(part) for the parts of every tile, each tile by all workers, one after another.
  template <class Body>
  void for_each_part(cpu_adam::WorkerPool& pool, Slots slots, const Body& body) const {
    const auto all = [&] {
      for (std::size_t tile = 0; tile < tiles(); ++tile) in_parts(pool, range(slots, tile), body);
    };
    pool.submit([&all] { all(); }).wait();
  }
  template <class Body>
  void for_each_part(cpu_adam::WorkerPool& pool, const cpu_adam::UpdateRange& whole,
                     const Body& body) const {
    const auto all = [&] { in_parts(pool, whole, body); };
    pool.submit([&all] { all(); }).wait();
  }

 private:
  template <class Body>
  void in_parts(cpu_adam::WorkerPool& pool, const cpu_adam::UpdateRange& whole,
                const Body& body) const {
    pool.parallel_for(whole.count, kLeafParameters, [&](std::size_t first, std::size_t last) {
      body(cpu_adam::slice(kernel_, whole, first, last - first));
    });
  }
  [[nodiscard]] const cpu_adam::StateLayout& layout_of(std::size_t tile) const {
    return tile < count_ / tile_ ? full_ : last_;
  }

  const cpu_adam::Kernel& kernel_;
  const std::size_t count_;
  const std::size_t tile_;
  const cpu_adam::StateLayout full_;  ///< of a tile
  const cpu_adam::StateLayout last_;  ///< of what is left
  std::size_t state_bytes_;
  HugeArray gradient_;
  HugeArray state_[2];
  HugeArray parameters_[2];
};

}  // namespace spillway::bench
