// GradientCounts: which gradients of a step have come, by parameter and by block. Any thread, but
// for one parameter one at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/mutex.hpp"
#include "runtime/engine/embedded/plan/layout.hpp"

namespace spillway::engine {

class GradientCounts {
 public:
  /// Which gradient of its parameter one is in a step.
  enum class Turn : std::uint8_t { first, later };

  /// Keeps references to both arguments, which outlive this object.
  GradientCounts(const EmbeddedOptions& options, const EmbeddedLayout& layout);

  /// Throws `Error{invalid_argument}` if the parameter has had all its gradients of this step.
  void check_room(std::uint32_t parameter) const;
  /// Notes that a gradient of the parameter has been taken.
  [[nodiscard]] Turn take(std::uint32_t parameter);
  /// Notes that it has come to host memory. Returns whether it is the last of its block.
  [[nodiscard]] bool land(std::uint32_t parameter);

  /// Whether a gradient was taken: of any parameter, or of this one.
  [[nodiscard]] bool any() const;
  [[nodiscard]] bool any(std::uint32_t parameter) const;
  /// Returns, by parameter, whether it keeps its value because its gradient is missing; empty if
  /// none does.
  [[nodiscard]] std::vector<bool> skipped() const;
  /// Throws `Error{invalid_argument}` that names a parameter whose gradient is missing, if the
  /// options refuse that.
  void check_complete() const;

  /// Forgets the gradients of all parameters, or of one.
  void forget();
  void forget(std::uint32_t parameter);

 private:
  const EmbeddedOptions& options_;
  const EmbeddedLayout& layout_;

  mutable Mutex mutex_;
  /// By parameter: gradients of this step.
  std::vector<std::uint32_t> received_ SPILLWAY_GUARDED_BY(mutex_);
  /// By block: gradients that it still waits for.
  std::vector<std::uint64_t> missing_ SPILLWAY_GUARDED_BY(mutex_);
  bool any_ SPILLWAY_GUARDED_BY(mutex_) = false;
};

}  // namespace spillway::engine
