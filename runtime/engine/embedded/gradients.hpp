// EmbeddedGradients: takes the gradients of a step into host memory, and counts them. Those in the
// memory of a device are brought by a thread of this object, behind what computes them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine/embedded/cycle.hpp"
#include "runtime/engine/embedded/gradient_copies.hpp"
#include "runtime/engine/embedded/pass_gate.hpp"
#include "runtime/engine/embedded/plan_runner.hpp"

namespace spillway::engine {

/// What gradients are taken for; all outlive those who use it.
struct GradientUsers {
  EmbeddedCycle& cycle;
  PassGate& gate;
  PlanRunner& runner;
};

/// `add` and `reads` may be called as EmbeddedTrainer says; the rest while no thread adds.
class EmbeddedGradients {
 public:
  /// All outlive this object.
  EmbeddedGradients(const EmbeddedOptions& options, const EmbeddedLayout& layout,
                    const std::vector<std::string>& names, const GradientUsers& users);
  /// What is on its way is given up.
  ~EmbeddedGradients();
  EmbeddedGradients(const EmbeddedGradients&) = delete;
  EmbeddedGradients& operator=(const EmbeddedGradients&) = delete;

  // As EmbeddedTrainer::add_gradient, add_device_gradient and reads_gradient.
  void add(std::uint32_t parameter, std::span<const std::byte> gradient);
  void add_from_device(std::uint32_t parameter, const DeviceGradient& gradient);
  [[nodiscard]] bool reads(std::uint32_t parameter) const;

  [[nodiscard]] bool any() const;
  /// Returns by parameter whether its gradient is missing and it keeps its value for that; empty
  /// where none does.
  [[nodiscard]] std::vector<bool> skipped() const;
  /// Throws `Error{invalid_argument}` that names a parameter whose gradient is missing, if the
  /// options refuse that.
  void check_complete() const;
  /// Returns once all that were added are in host memory.
  void land();
  /// Leaves zeros where no gradient came. The plan of the step runs, or is over.
  void fill_missing();
  void forget();
  /// As EmbeddedTrainer::discard_gradient.
  void discard(std::uint32_t parameter);

 private:
  /// Which gradient of its parameter one is in a step.
  enum class Turn : std::uint8_t { first, later };
  /// A gradient on its way from the device.
  struct OnTheWay {
    offload::DeviceSpan<const std::byte> source{};  ///< none: there is none
    std::unique_ptr<offload::Event> ready;
    bool waits = false;  ///< for `ready`
    Turn turn = Turn::first;
    std::uint64_t begun = 0;
  };

  void check_size(std::uint32_t parameter, std::size_t bytes) const;
  [[nodiscard]] Turn receive(std::uint32_t parameter);
  void store(std::uint32_t parameter, Turn turn, std::uint64_t first,
             std::span<const std::byte> bytes);
  void count(std::uint32_t parameter);
  void await_memory(std::uint32_t parameter);
  void await_room(std::unique_lock<std::mutex>& lock, std::uint32_t parameter, Bytes bytes);
  void check_sound() const;

  void bring() noexcept;
  void bring_all();
  void begin_next();
  void finish(const GradientCopy& copy);

  const EmbeddedOptions& options_;
  const EmbeddedLayout& layout_;
  const std::vector<std::string>& names_;
  const GradientUsers users_;
  const bool alone_;  ///< a parameter has one gradient in a step

  mutable std::mutex mutex_;  // of all below but the copies
  mutable std::condition_variable changed_;
  std::vector<std::uint32_t> received_;  ///< by parameter: gradients of this step
  std::vector<std::uint64_t> missing_;   ///< by block: gradients that it still waits for
  bool any_ = false;
  std::vector<OnTheWay> on_the_way_;  ///< by parameter
  Bytes waiting_;                     ///< of all on their way
  /// Parameters whose copies have yet to begin: a ring with room for each of them once.
  std::vector<std::uint32_t> queue_;
  std::size_t oldest_ = 0;  ///< in the ring
  std::size_t queued_ = 0;  ///< in the ring
  bool stops_ = false;
  std::exception_ptr failure_;

  std::optional<GradientCopies> copies_;  ///< of the thread
  std::thread thread_;
};

}  // namespace spillway::engine
