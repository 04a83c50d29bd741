// Measures updates against the traffic-only limit and each other, interleaved, on arrays of their
// own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cpu_adam/adam.hpp"
#include "cpu_adam/worker_pool.hpp"

namespace spillway::bench {

struct AdamCase {
  std::size_t parameters = 0;
  std::size_t tile = 0;  ///< parameters that share a layout; 0: all of them
  StateFormat format = StateFormat::fp32;
  DType gradient = DType::bf16;
  DType parameter = DType::bf16;
  cpu_adam::Isa isa = cpu_adam::Isa::scalar;
  std::size_t threads = 0;  ///< 0: one a physical core
  std::size_t repetitions = 9;
  std::optional<std::size_t> prefetch;  ///< absent: calibrated
  bool denormals = false;               ///< also with moments below the normal range
};

/// Nanoseconds a parameter (or a ratio) of every repetition, in order.
struct Series {
  std::vector<double> ns;
  [[nodiscard]] double median() const;
  [[nodiscard]] double minimum() const;
};

/// Returns the median over repetitions of `over` / `under`, which were measured in turn.
[[nodiscard]] double median_ratio(const Series& over, const Series& under);

struct AdamMeasurement {
  AdamCase of;
  std::size_t threads = 0;
  std::size_t prefetch = 0;          ///< of the update
  std::size_t traffic_prefetch = 0;  ///< of the traffic-only pass
  double bytes_per_parameter = 0;
  Series traffic, update;  ///< in place
  /// The traffic in the layout that was fastest for it: arrays of this skew in bytes, or those of
  /// the update itself.
  std::optional<std::size_t> limit_skew;
  Series limit;
  Series traffic_apart, update_apart;  ///< read one slot, write the other
  /// Ratio of update_apart from moments below the normal range to that from ordinary ones just
  /// before.
  Series denormal_tenth, denormal_all;
  bool exact = false;  ///< a sample equalled the plain kernel bit for bit

  /// 1 is the limit of memory, of any layout or of this one.
  [[nodiscard]] double fraction_of_limit() const { return median_ratio(limit, update); }
  [[nodiscard]] double fraction_of_layout() const { return median_ratio(traffic, update); }
};

/// Measures cases of equal threads and repetitions, each repetition all of them in turn: a noisy
/// moment of the machine hits all. `between` runs once a repetition, for whoever else measures.
[[nodiscard]] std::vector<AdamMeasurement> measure_adam(std::span<const AdamCase> cases,
                                                        const std::function<void()>& between = {});

}  // namespace spillway::bench
