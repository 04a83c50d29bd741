// EmbeddedCycle: the step cycle of parameters whose passes another framework runs, and their state
// one parameter at a time. Nothing else may run meanwhile, whichever thread calls.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/base/mutex.hpp"
#include "runtime/engine/embedded/layout.hpp"
#include "runtime/engine/report/step_trace.hpp"
#include "runtime/engine/training/step_cycle.hpp"

namespace spillway::engine {

/// The memory of parameters whose trainer has ended.
struct ParameterMemory {
  std::unique_ptr<offload::DeviceBackend> backend;  // it outlives what it has allocated
  std::array<offload::DeviceMemory, 2> device;      ///< of parameters and of frozen tensors
  std::array<offload::PinnedMemory, 2> host;        ///< likewise
};

/// What the control thread runs. Where parameters are streamed, `step` is one forward pass.
enum class EmbeddedPlan : std::uint8_t { step, backward, norms, update };

class EmbeddedCycle final : public StepCycle {
 public:
  /// Allocates everything. `options`: resolved. `layout` and `passes` outlive this object.
  EmbeddedCycle(const EmbeddedOptions& options, const EmbeddedLayout& layout,
                ForeignPasses& passes);

  /// Returns what the norm of a parameter's gradient is made of.
  [[nodiscard]] std::span<const double> leaf_sums(const EmbeddedPlace& place);
  void run(EmbeddedPlan plan);
  /// Returns whether the norms of all gradients of a step can be had after that plan.
  [[nodiscard]] bool gathers(EmbeddedPlan plan) const {
    const bool streams = workload().streams_external;
    return plan == (streams ? EmbeddedPlan::norms : EmbeddedPlan::step);
  }

  /// Decides the update of a step whose gradients have this norm, the divisor applied: clipped, or
  /// none if the norm after clipping is not finite in fp32. Returns whether there is one.
  /// `skipped`: by parameter, whether it keeps its value and its state; empty: none does.
  bool decide(std::span<const cpu_adam::AdamOptions> groups, double norm, const EmbeddedStep& step,
              const std::vector<bool>& skipped);

  /// Whether an update is decided that no plan has applied.
  [[nodiscard]] bool has_pending() const { return pending_.pending; }

  /// Returns where the parameter lies on the host, and where its gradient waits.
  [[nodiscard]] std::span<std::byte> values(const EmbeddedPlace& place);
  [[nodiscard]] bool is_resident(const EmbeddedPlace& place) const {
    return placement().blocks[place.block].resident();
  }
  /// Returns where a parameter that stays on the device lies there.
  [[nodiscard]] offload::DeviceSpan<std::byte> resident_values(const EmbeddedPlace& place);
  /// Orders copies to the device, or from it, behind the framework's work. A plan may be running.
  void order_uploads(const offload::ForeignWork& work) { order(*engine().streams().upload, work); }
  void order_downloads(const offload::ForeignWork& work) {
    order(*engine().streams().download, work);
  }
  /// Downloads a resident parameter that the framework has written.
  void download_resident(const EmbeddedPlace& place);
  /// Returns where a frozen tensor is kept: on the host, or on the device if it is of no unit.
  [[nodiscard]] std::span<std::byte> frozen(const FrozenPlace& place);
  void write_frozen(const FrozenPlace& place, std::span<const std::byte> values);
  [[nodiscard]] std::span<std::byte> gradient(const EmbeddedPlace& place);
  /// Writes zeros behind a parameter's gradient, up to the next leaf: nothing else writes there,
  /// and norms read it.
  void clear_padding(const EmbeddedPlace& place);

  // As EmbeddedTrainer describes these

  void read_state(const EmbeddedPlace& place, const cpu_adam::WideState& wide);
  void write_state(const EmbeddedPlace& place, const cpu_adam::ConstWideState& wide);
  void take_values(const EmbeddedPlace& place, TakenValues which);
  void set_updates(std::uint64_t updates);
  [[nodiscard]] const std::vector<std::uint64_t>& updates() const { return updates_; }
  /// Sets how often a parameter was updated.
  void set_updates(std::uint32_t parameter, std::uint64_t updates);
  /// Gives away the memory of all values. Nothing runs any more; only the destructor may follow.
  [[nodiscard]] std::shared_ptr<ParameterMemory> take_memory() noexcept;
  void save(const std::filesystem::path& directory);
  /// Returns the state of a checkpoint, all of which was read once.
  [[nodiscard]] std::unique_ptr<SavedState> open_checkpoint(const std::filesystem::path& directory);
  void load(const SavedState& saved);

  [[nodiscard]] std::vector<plan::MemoryItem> memory() const;
  /// Returns what the last step used; a plan under way is not in it. Any thread.
  [[nodiscard]] EmbeddedUse use() const;
  /// Records a copy of a gradient from the device that has just ended. Any thread.
  void note_download(std::uint32_t block, Bytes bytes, std::chrono::nanoseconds duration);
  /// Writes the trace. Any thread. Throws `Error{invalid_argument}` unless the options ask for one.
  void write_trace(const std::filesystem::path& path) const;
  [[nodiscard]] WakeSignal& wake() { return engine().wake(); }
  /// Returns what the framework and this object share of a GPU; null on the host.
  [[nodiscard]] offload::SharedDevice* shared() const { return shared_; }

 private:
  void make_update(std::span<const cpu_adam::AdamOptions> groups, double scale,
                   const std::vector<std::uint64_t>& updates, const std::vector<bool>& skipped,
                   PendingUpdate& update) const;
  /// Records what a finished plan has used.
  void note(EmbeddedPlan plan);
  /// The part of a tile that belongs to one parameter.
  struct Part {
    std::uint32_t tile;
    std::uint64_t first;         ///< in the tile
    std::uint64_t of_parameter;  ///< in the parameter
    std::uint64_t count;
    bool whole;  ///< it is all of the tile
  };
  template <class Visit>
  void visit_parts(const EmbeddedPlace& place, const Visit& visit);
  /// Returns where the state of a part lies in its tile.
  [[nodiscard]] cpu_adam::StateLayout layout_of(const Part& part) const;
  /// Returns the values of a part on the host.
  [[nodiscard]] std::byte* parameters_of(const Part& part);
  /// Returns the staging buffer of state calls, as a slot of the tile.
  [[nodiscard]] std::span<std::byte> staging_of(std::uint32_t tile);
  /// Whether a call needs what a tile holds.
  enum class Content : std::uint8_t { kept, replaced };
  /// Returns the state of the part's tile in memory. What lies on disk is staged, where the next
  /// parameter of that tile finds it.
  [[nodiscard]] std::byte* state_of(const Part& part, Content content);
  /// Writes the staged tile to the disk if it is new there, and frees the staging buffer.
  void unstage();
  void read_part(const Part& part, const cpu_adam::WideState& wide);
  void write_part(const Part& part, const cpu_adam::ConstWideState& wide);
  /// Makes masters follow values, and returns whether one has changed.
  [[nodiscard]] bool take_part(const Part& part, TakenValues which);
  void upload_resident(const EmbeddedPlace& place);
  void order(offload::Stream& stream, const offload::ForeignWork& work);

  const EmbeddedLayout& layout_;
  std::vector<std::uint64_t> updates_;   ///< by parameter: Adam's t
  std::vector<std::uint32_t> in_order_;  ///< parameters in the order of blocks and of places there
  const cpu_adam::Isa isa_;
  std::unique_ptr<Executor> backward_, norms_;  ///< of streamed parameters
  std::optional<std::uint32_t> staged_;         ///< the tile that a state call has staged
  bool staged_is_new_ = false;                  ///< what is staged is not on the disk yet
  offload::SharedDevice* const shared_;         ///< null on the host
  std::unique_ptr<offload::Event> foreign_;     ///< behind the framework's work
  /// Empty until the end, which could not make it: memory may be lacking then.
  std::shared_ptr<ParameterMemory> taken_ = std::make_shared<ParameterMemory>();
  bool begins_step_ = true;  ///< the next plan that is no update is the first of a step

  mutable Mutex use_mutex_;
  /// None unless the options ask for it. Recorded under use_mutex_, and written meanwhile.
  std::optional<StepTrace> trace_;
  EmbeddedUse use_ SPILLWAY_GUARDED_BY(use_mutex_);
  double download_seconds_ SPILLWAY_GUARDED_BY(use_mutex_) = 0;  ///< since a plan was over
};

}  // namespace spillway::engine
