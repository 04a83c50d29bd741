// What an embedded trainer is made of, and what it counts between two steps.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/embedded/cycle.hpp"
#include "runtime/engine/embedded/gradients.hpp"
#include "runtime/engine/embedded/layout.hpp"
#include "runtime/engine/embedded/pass_gate.hpp"
#include "runtime/engine/embedded/plan_runner.hpp"
#include "runtime/engine/embedded/unit_passes.hpp"
#include "runtime/engine/embedded_trainer.hpp"

namespace spillway::engine {

class EmbeddedTrainer::Implementation {
 public:
  Implementation(const EmbeddedOptions& options, std::span<const EmbeddedParameter> parameters,
                 std::span<const FrozenTensor> frozen);
  ~Implementation();

  // As EmbeddedTrainer describes these

  std::span<std::byte> values(std::uint32_t parameter);
  void enter(std::uint32_t unit, EmbeddedPass pass);
  std::span<std::byte> device_values(std::uint32_t parameter);
  std::span<std::byte> frozen_values(std::uint32_t frozen);
  std::span<std::byte> device_frozen(std::uint32_t frozen);
  void leave(std::uint32_t unit, const offload::ForeignWork& readers);
  void take_values(std::uint32_t parameter, const offload::ForeignWork& writers, TakenValues which);
  void forget_uploads();
  void discard_gradients();
  void discard_gradient(std::uint32_t parameter);
  void read_gradient(std::uint32_t parameter, std::span<float> sum);
  void write_gradient(std::uint32_t parameter, std::span<const float> sum);
  void reopen_gradients() { rest(); }
  double grad_norm(double divisor);
  std::span<const double> leaf_sums();
  EmbeddedResult step(const EmbeddedStep& step);
  void wait(std::uint32_t parameter);
  void set_group(std::uint32_t group, const cpu_adam::AdamOptions& wanted);
  void read_state(std::uint32_t parameter, const cpu_adam::WideState& wide);
  void write_state(std::uint32_t parameter, const cpu_adam::ConstWideState& wide);
  void set_updates(std::uint64_t updates);
  void set_updates(std::uint32_t parameter, std::uint64_t updates);
  [[nodiscard]] EndedMemory take_memory() noexcept;
  void save(const std::filesystem::path& directory);
  void load(const std::filesystem::path& directory);

  void check_group(std::uint32_t group) const;
  [[nodiscard]] bool is_in_child() const { return getpid() != process_; }
  void check_process() const;
  [[nodiscard]] const ParameterRange& range(std::uint32_t parameter) const;
  [[nodiscard]] const EmbeddedOptions& options() const { return options_; }
  [[nodiscard]] const std::vector<std::string>& names() const { return layout_.names; }
  [[nodiscard]] EmbeddedCycle& cycle() { return cycle_; }
  [[nodiscard]] EmbeddedGradients& gradients() { return gradients_; }
  [[nodiscard]] std::vector<plan::MemoryItem> memory() const;

 private:
  using Phase = PlanRunner::Phase;

  /// Blocks until nothing runs; an update that is decided is applied, unless an error prevents it.
  void come_to_rest() noexcept;

  [[nodiscard]] bool streams() const { return layout_.workload.streams_external; }
  [[nodiscard]] const FrozenRange& frozen_range(std::uint32_t frozen) const;
  [[nodiscard]] std::span<std::byte> resident_values(const ParameterRange& at);
  void gather();
  void rest();
  void park();
  void check_count(std::uint32_t parameter, std::size_t count) const;
  void check_counts(std::uint32_t parameter, std::span<const std::size_t> counts) const;
  void check_waited(std::uint32_t parameter);

  EmbeddedOptions options_;
  const EmbeddedLayout layout_;
  std::vector<std::uint64_t> elements_;  ///< by parameter
  std::vector<double> leaf_sums_;        ///< of all parameters, in their order
  const pid_t process_;
  PassGate gate_;
  /// By block that is not streamed: number of the last update that the framework has waited for.
  std::vector<std::atomic<std::uint64_t>> waited_;
  EmbeddedCycle cycle_;
  EmbeddedValues& values_;      ///< of the cycle
  ParameterState& parameters_;  ///< of the cycle
  PlanRunner runner_;           // ends before all that it runs
  UnitPasses passes_;
  EmbeddedGradients gradients_;
};

}  // namespace spillway::engine
