// EmbeddedGradients: takes the gradients of a step into host memory. Those in the memory of a
// device are brought by a thread of this object, behind what computes them.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "runtime/base/mutex.hpp"
#include "runtime/engine/embedded/gradients/gradient_copies.hpp"
#include "runtime/engine/embedded/gradients/gradient_counts.hpp"
#include "runtime/engine/embedded/passes/pass_gate.hpp"
#include "runtime/engine/embedded/passes/plan_runner.hpp"
#include "runtime/engine/embedded/passes/use_record.hpp"
#include "runtime/engine/embedded/values/values.hpp"

namespace spillway::engine {

/// What counts the gradients, and what uses them; all outlive EmbeddedGradients.
struct GradientUsers {
  GradientCounts& counts;
  EmbeddedValues& values;
  UseRecord& record;
  PassGate& gate;
  PlanRunner& runner;
};

/// `add` and `reads` may be called as EmbeddedTrainer says; the rest while no thread adds.
class EmbeddedGradients {
 public:
  /// Keeps references to all arguments, which outlive this object.
  EmbeddedGradients(const EmbeddedOptions& options, const EmbeddedLayout& layout,
                    const GradientUsers& users);
  /// Gives up the gradients on their way.
  ~EmbeddedGradients();
  EmbeddedGradients(const EmbeddedGradients&) = delete;
  EmbeddedGradients& operator=(const EmbeddedGradients&) = delete;

  // As EmbeddedTrainer::add_gradient, add_device_gradient and reads_gradient.
  void add(std::uint32_t parameter, std::span<const std::byte> gradient);
  void add_from_device(std::uint32_t parameter, const DeviceGradient& gradient);
  [[nodiscard]] bool reads(std::uint32_t parameter) const;

  /// Blocks until all gradients that were added are in host memory.
  void land();
  /// Writes zeros where no gradient came, while the plan of the step runs or once it is over.
  void fill_missing();

  // As EmbeddedTrainer describes these, while nothing runs and no gradient is on its way.

  void read(std::uint32_t parameter, std::span<float> sum) const;
  void read_last(std::uint32_t parameter, std::span<float> sum) const;
  void write(std::uint32_t parameter, std::span<const float> sum);

 private:
  using Turn = GradientCounts::Turn;
  using Source = offload::DeviceSpan<const std::byte>;
  /// A gradient on its way from the device.
  struct OnTheWay {
    std::unique_ptr<offload::Event> ready;
    bool waits = false;  ///< for `ready`
    Turn turn = Turn::first;
    std::uint64_t begun = 0;
  };

  void check_size(std::uint32_t parameter, std::size_t bytes) const;
  [[nodiscard]] Turn receive(std::uint32_t parameter);
  void store(std::uint32_t parameter, Turn turn, std::uint64_t first,
             std::span<const std::byte> bytes);
  void note_landed(std::uint32_t parameter);
  void await_memory(std::uint32_t parameter);
  void await_last(Lock& lock, std::uint32_t parameter) SPILLWAY_REQUIRES(mutex_);
  void await_room(Lock& lock, Bytes bytes) SPILLWAY_REQUIRES(mutex_);
  [[nodiscard]] bool has_room(Bytes bytes) const SPILLWAY_REQUIRES(mutex_);
  void check_sound() const SPILLWAY_REQUIRES(mutex_);

  void bring() noexcept;
  void bring_all();
  void begin_next();
  void finish(const GradientCopy& copy);

  const EmbeddedOptions& options_;
  const EmbeddedLayout& layout_;
  const GradientUsers users_;
  const bool alone_;  ///< a parameter has one gradient in a step

  mutable Mutex mutex_;
  mutable Condition changed_;
  /// By parameter: what is on its way from the device; empty: nothing.
  std::vector<Source> sources_ SPILLWAY_GUARDED_BY(mutex_);
  Bytes waiting_ SPILLWAY_GUARDED_BY(mutex_);  ///< of all on their way
  /// Parameters whose copies have yet to begin: a ring with room for each of them once.
  std::vector<std::uint32_t> queue_ SPILLWAY_GUARDED_BY(mutex_);
  std::size_t oldest_ SPILLWAY_GUARDED_BY(mutex_) = 0;  ///< in the ring
  std::size_t queued_ SPILLWAY_GUARDED_BY(mutex_) = 0;  ///< in the ring
  bool stops_ SPILLWAY_GUARDED_BY(mutex_) = false;
  std::exception_ptr failure_ SPILLWAY_GUARDED_BY(mutex_);

  /// By parameter: used by the thread while the parameter has a source, else by the caller that
  /// adds.
  std::vector<OnTheWay> on_the_way_;
  std::optional<GradientCopies> copies_;  ///< of the thread
  std::thread thread_;
};

}  // namespace spillway::engine
