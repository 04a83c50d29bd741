// What an embedded trainer is made of, and what it counts between two steps.
#pragma once

#include <unistd.h>

#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/embedded/cycle.hpp"
#include "runtime/engine/embedded/layout.hpp"
#include "runtime/engine/embedded/pass_gate.hpp"
#include "runtime/engine/embedded/plan_runner.hpp"
#include "runtime/engine/embedded_trainer.hpp"

namespace spillway::engine {

class EmbeddedTrainer::Implementation {
 public:
  Implementation(const EmbeddedOptions& options, std::span<const EmbeddedParameter> parameters);
  ~Implementation();

  // What the class says.
  std::span<std::byte> values(std::uint32_t parameter);
  void enter(std::uint32_t unit, EmbeddedPass pass);
  std::span<std::byte> device_values(std::uint32_t parameter);
  void leave(std::uint32_t unit);
  void take_values(std::uint32_t parameter);
  void add_gradient(std::uint32_t parameter, std::span<const std::byte> gradient);
  void discard_gradients();
  double grad_norm(double divisor);
  EmbeddedResult step(const EmbeddedStep& step);
  void wait(std::uint32_t parameter);
  void set_group(std::uint32_t group, const cpu_adam::AdamOptions& wanted);
  void read_state(std::uint32_t parameter, const cpu_adam::WideState& wide);
  void write_state(std::uint32_t parameter, const cpu_adam::ConstWideState& wide);
  void set_updates(std::uint64_t updates);
  void save(const std::filesystem::path& directory);
  void load(const std::filesystem::path& directory);

  void check_group(std::uint32_t group) const;
  [[nodiscard]] bool is_in_child() const { return getpid() != process_; }
  void check_process() const;
  [[nodiscard]] const EmbeddedPlace& place(std::uint32_t parameter) const;
  [[nodiscard]] const EmbeddedOptions& options() const { return options_; }
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] EmbeddedCycle& cycle() { return cycle_; }

 private:
  using Phase = PlanRunner::Phase;

  bool receive(std::uint32_t parameter);
  void forget_received();
  void check_received() const;
  void await_gradient_memory(const EmbeddedPlace& at);
  [[nodiscard]] bool streams() const { return layout_.workload.streams_external; }
  void check_unit(std::uint32_t unit) const;
  [[nodiscard]] std::span<std::byte> resident_values(const EmbeddedPlace& at);
  void gather();
  void park();
  void check_count(std::uint32_t parameter, std::size_t count) const;

  EmbeddedOptions options_;
  const EmbeddedLayout layout_;
  std::vector<std::string> names_;
  const pid_t process_;
  PassGate gate_;
  EmbeddedCycle cycle_;

  std::mutex mutex_;                     // of what was received
  std::vector<std::uint32_t> received_;  ///< by parameter: gradients of this step
  std::vector<std::uint32_t> missing_;   ///< by block: gradients that it still waits for
  bool any_received_ = false;

  std::uint32_t entered_ = 0;  ///< units of the pass under way, in its order
  std::optional<std::uint32_t> inside_;

  PlanRunner runner_;  // ends before all that it runs
};

}  // namespace spillway::engine
