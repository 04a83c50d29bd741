// What an embedded trainer is made of, and what it counts between two steps.
#pragma once

#include <unistd.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/mutex.hpp"
#include "runtime/engine/embedded/cycle.hpp"
#include "runtime/engine/embedded/gradients.hpp"
#include "runtime/engine/embedded/layout.hpp"
#include "runtime/engine/embedded/pass_gate.hpp"
#include "runtime/engine/embedded/plan_runner.hpp"
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
  double grad_norm(double divisor);
  std::span<const double> leaf_sums();
  EmbeddedResult step(const EmbeddedStep& step);
  void wait(std::uint32_t parameter);
  void set_group(std::uint32_t group, const cpu_adam::AdamOptions& wanted);
  void read_state(std::uint32_t parameter, const cpu_adam::WideState& wide);
  void write_state(std::uint32_t parameter, const cpu_adam::ConstWideState& wide);
  void set_updates(std::uint64_t updates);
  void set_updates(std::uint32_t parameter, std::uint64_t updates);
  [[nodiscard]] std::shared_ptr<ParameterMemory> take_memory() noexcept;
  void save(const std::filesystem::path& directory);
  void load(const std::filesystem::path& directory);

  void check_group(std::uint32_t group) const;
  [[nodiscard]] bool is_in_child() const { return getpid() != process_; }
  void check_process() const;
  [[nodiscard]] const EmbeddedPlace& place(std::uint32_t parameter) const;
  [[nodiscard]] const EmbeddedOptions& options() const { return options_; }
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] EmbeddedCycle& cycle() { return cycle_; }
  [[nodiscard]] EmbeddedGradients& gradients() { return gradients_; }
  [[nodiscard]] std::vector<plan::MemoryItem> memory() const;

 private:
  using Phase = PlanRunner::Phase;

  /// Blocks until nothing runs; an update that is decided is applied, unless an error prevents it.
  void come_to_rest() noexcept;

  [[nodiscard]] bool streams() const { return layout_.workload.streams_external; }
  void check_unit(std::uint32_t unit) const;
  void check_left() const SPILLWAY_EXCLUDES(passes_);
  void check_inside(std::uint32_t block, const std::string& name) const SPILLWAY_EXCLUDES(passes_);
  [[nodiscard]] const FrozenPlace& frozen_place(std::uint32_t frozen) const;
  [[nodiscard]] std::span<std::byte> resident_values(const EmbeddedPlace& at);
  void begin(EmbeddedPlan plan);
  void gather();
  void rest();
  void park();
  void check_count(std::uint32_t parameter, std::size_t count) const;
  void check_whole(std::uint32_t parameter) const;
  void check_whole() const;

  EmbeddedOptions options_;
  const EmbeddedLayout layout_;
  std::vector<std::string> names_, frozen_names_;
  std::vector<std::uint64_t> elements_;  ///< by parameter
  std::vector<double> leaf_sums_;        ///< of all parameters, in their order
  /// What of a parameter's state is only partly new, because a call that replaced it failed.
  struct Torn {
    bool masters = false;
    bool moments = false;
    [[nodiscard]] bool any() const { return masters || moments; }
  };
  std::vector<Torn> torn_;  ///< by parameter
  const pid_t process_;
  PassGate gate_;
  EmbeddedCycle cycle_;

  /// Keeps `wait`, which ends passes, apart from the thread that enters and leaves units.
  mutable Mutex passes_;
  std::optional<std::uint32_t> inside_ SPILLWAY_GUARDED_BY(passes_);
  /// Number of units that the pass under way has entered or passed over, in its order. Only the
  /// threads that enter units and that step use it, one at a time.
  std::uint32_t entered_ = 0;

  PlanRunner runner_;  // ends before all that it runs
  EmbeddedGradients gradients_;
};

}  // namespace spillway::engine
