// EmbeddedTrainer: trains parameters whose forward and backward another framework runs. It holds
// their values, keeps their masters and moments in host memory or on disk, takes gradients as they
// become ready, and updates. Its step plans are those of native training, with passes that a call
// completes.
//
// With `EmbeddedOptions::device` cuda the framework computes on a GPU: parameters, or the units
// that are entered, are in its memory, and gradients are taken from there. Calls then take the work
// of the framework that ours has to follow, as a stream or an event (offload::ExternalWork). What
// they return from is over: work that the framework launches afterwards has to wait for nothing.
//
// Threads: `add_gradient` and `wait` may be called by any number of threads, one at a time for one
// parameter, also while another thread enters and leaves units; everything else by one thread at a
// time, while none of these runs. `wait` for a parameter of a unit ends passes: it waits for a call
// that enters or leaves one. The object has a control thread of its own, which runs the plans,
// and with cuda one more, which brings gradients. A process that forks must not use it in the
// child; every call there throws `Error{not_supported}`.
//
// An error of the disk or the device in the middle of an update leaves some parameters updated and
// some not: every later call throws it again, and what goes on is a new trainer that loads a
// checkpoint. One in the middle of `load`, `write_state` or `take_values` leaves state that is new
// in a part: steps, `save` and `read_state` throw `Error{corrupt_data}` until a load, or the same
// call once more, has replaced all of it. Wrong arguments throw `Error{invalid_argument}` and
// change nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cpu_adam/adam.hpp"
#include "nvme_swap/tile_store.hpp"
#include "offload/device_backend.hpp"
#include "offload/shared_pages.hpp"
#include "runtime/base/dtype.hpp"
#include "runtime/base/state_format.hpp"
#include "runtime/base/units.hpp"
#include "runtime/config/train_options.hpp"
#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/step_plan.hpp"

namespace spillway::engine {

/// The most units whose parameters are on the device at once: one in a pass, one uploaded ahead,
/// and one that is being read yet.
inline constexpr std::uint32_t kMostUnitSlots = 3;

/// A tensor that the framework registers.
struct EmbeddedParameter {
  std::string name;            ///< unique; in errors and in checkpoints
  std::uint64_t elements = 0;  ///< at least 1
  std::uint32_t group = 0;     ///< into EmbeddedOptions::groups
  /// The part of the model it belongs to, where parameters are streamed. Parts are counted from 0
  /// in the order of forward, and the parameters of each are of two groups at most. A parameter of
  /// no part stays on the device.
  std::optional<std::uint32_t> unit{};
  /// [elements] at the start in host memory, read by the constructor alone.
  const std::byte* values = nullptr;
};

/// A tensor of any element type that passes read and nothing updates, where parameters are
/// streamed: it has no gradient, no state, and no place in checkpoints.
struct FrozenTensor {
  std::string name;  ///< unique among those of parameters too
  Bytes bytes;       ///< at least 1
  /// As a parameter's: a part of the model may be wholly frozen. Of no part: it stays on the
  /// device.
  std::optional<std::uint32_t> unit{};
  /// [bytes] at the start, read by the constructor alone. Null: the framework writes where the
  /// tensor is kept, before the first pass; of a unit on disk, by `write_frozen`.
  const std::byte* values = nullptr;
};

/// New values of a frozen tensor.
struct FrozenValues {
  std::uint32_t frozen = 0;
  std::span<const std::byte> values;  ///< [bytes]
};

/// What becomes of a parameter that got no gradient before `step`.
enum class MissingGradient : std::uint8_t {
  refuse,  ///< `step` throws, and can be called again once the gradient is there
  zero,    ///< its gradient is zero; its moments decay
  skip,    ///< it keeps its value, its moments and its number of updates, as torch's optimizers do
};

/// Which masters follow values that the framework has written.
enum class TakenValues : std::uint8_t {
  all,
  /// Masters that do not round to the written value: a value changed and changed back loses
  /// nothing. The formats shorter than fp32 keep the upper half of a master in the value alone; the
  /// lower half stays there, whatever the value was. A step does this by itself for values that are
  /// kept on the host.
  changed,
};

struct EmbeddedOptions {
  /// Where the framework computes. With cuda, parameters of no unit are kept in the GPU's memory.
  config::DeviceKind device = config::DeviceKind::host;
  int device_index = 0;                          ///< of the GPU, as CUDA numbers them
  DType dtype = DType::fp32;                     ///< of parameters and gradients
  StateFormat state_format = StateFormat::fp32;  ///< the others go with bf16 parameters
  std::vector<cpu_adam::AdamOptions> groups;     ///< of the next step; at least one
  /// Gradients that each parameter gets in a step. Several are summed in fp32, in the order of
  /// their arrival; 0: any number, and no norm is computed before `step`.
  std::uint32_t gradients_per_step = 1;
  /// `step` decides the update; it runs while the framework goes on, and `wait` waits for it. So
  /// does a unit's next forward for its own, where parameters are streamed.
  bool defers_updates = false;
  MissingGradient missing_gradient = MissingGradient::refuse;
  /// Parameters are streamed through that much of the device, a unit at a time: `enter`. Absent:
  /// the framework reads all of them where they are kept. On the host the device is as much of its
  /// memory.
  std::optional<Bytes> device_memory;
  /// On the host, copies to and from that memory take as long as over a link of this rate.
  /// Absent: as long as they take.
  std::optional<double> host_link_gbps;
  /// As much of gradients may wait on the device to be brought away; then `add_gradient` blocks.
  /// One is always taken. Absent: any.
  std::optional<Bytes> gradient_memory;
  std::optional<Bytes> host_memory;  ///< absent: what cgroup and system leave
  /// As much of the memory of values at the start is freed once the trainer is made. It counts as
  /// free for gradients, which come later.
  Bytes freed_values;
  /// Pages of a file that other processes map too; absent: memory of the trainer. `parameter_pages`
  /// have the parameters that are kept on the host, one behind the other on leaves in the order of
  /// registration, and `frozen_pages` the frozen tensors of units, which are there already and
  /// stay. `host_memory` does not count either.
  std::optional<offload::SharedPages> parameter_pages, frozen_pages;
  std::vector<std::filesystem::path> nvme;  ///< where state lives; empty: in host memory
  /// Where frozen tensors of units live, which are read there for each pass; empty: in host memory.
  /// The trainer writes files there, which go with it.
  std::vector<std::filesystem::path> frozen_nvme;
  std::uint64_t tile_parameters = 2u << 20;  ///< a multiple of kLeafParameters
  std::uint32_t threads = 0;                 ///< of the update; 0: physical cores
  std::optional<cpu_adam::Isa> isa;
  std::uint64_t seed = 1234;  ///< of stochastic rounding (format bf16)
  bool traces = false;        ///< records the first operations, for `write_trace`
  /// Puts an adaptor around what reads and writes state and checkpoints on disk; for tests.
  decltype(nvme_swap::StoreOptions::adapt) adapt;
};

struct EmbeddedStep {
  /// Gradients are divided by it: the loss scale, or the number of gradients where their mean is
  /// meant.
  double gradient_divisor = 1;
  double max_norm =
      0;  ///< clips the global norm, as torch.nn.utils.clip_grad_norm_; 0: it does not
  /// The global norm, the divisor applied, where other trainers have a part of the gradients.
  /// Absent: the norm of this trainer's gradients.
  std::optional<double> grad_norm{};
  offload::ExternalWork readers{};  ///< may still read parameters on the device
};

/// A gradient in the memory of the device.
struct DeviceGradient {
  offload::DeviceSpan<const std::byte> values;  ///< [elements] of the dtype
  offload::ExternalWork ready{};                ///< makes it
};

struct EmbeddedResult {
  std::uint64_t step = 0;  ///< from 1, skipped ones included
  double grad_norm = 0;    ///< after the divisor, before clipping
  /// A gradient, after divisor and clipping, was not finite in fp32: parameters and state are as
  /// before.
  bool skipped = false;
};

/// What the last step used, its update included, or the step under way as far as its plans are
/// over. With `defers_updates` a step begins with the update that the step before has decided.
struct EmbeddedUse {
  std::array<double, plan::kMachineLanes> busy_seconds{};  ///< by lane
  Bytes read, written;                                     ///< of the disk, since the start
  Bytes uploaded, downloaded;  ///< parameters to the device and gradients from it, likewise
};

/// Returns the norm of gradients from the `leaf_sums` of all parameters; `elements`: of each
/// parameter. Trainers that share a model have the bits of one that has it whole, if parameters are
/// cut at multiples of kLeafParameters.
[[nodiscard]] double norm_of(std::span<const double> leaf_sums,
                             std::span<const std::uint64_t> elements);

enum class EmbeddedPass : std::uint8_t { forward, backward };

/// Memory of a trainer that has ended. Each lives as long as its object.
struct EndedMemory {
  std::shared_ptr<void> values;  ///< that of `values` and `frozen_values`
  std::shared_ptr<void> units;   ///< that of `device_values` and `device_frozen`, whatever is there
};

struct EmbeddedParts;

class EmbeddedTrainer {
 public:
  /// Throws `Error{does_not_fit}` where the budgets are too small, `Error{busy}` where another
  /// process has the folders in `nvme`.
  EmbeddedTrainer(const EmbeddedOptions& options, std::span<const EmbeddedParameter> parameters,
                  std::span<const FrozenTensor> frozen = {});
  /// Applies an update that is decided. The memory of `values` goes with the object.
  ~EmbeddedTrainer();
  EmbeddedTrainer(const EmbeddedTrainer&) = delete;
  EmbeddedTrainer& operator=(const EmbeddedTrainer&) = delete;

  [[nodiscard]] std::size_t size() const;
  [[nodiscard]] const EmbeddedOptions& options() const;
  [[nodiscard]] const std::string& name(std::uint32_t parameter) const;

  /// Returns where the parameter is kept: [elements] of the dtype, on a multiple of 64 bytes. A
  /// step writes it; the framework may read it in between. With `device_memory` or cuda, a
  /// parameter of no unit is kept on the device; with cuda the address is one of the GPU then.
  /// `release_device` and `resume_device` change where that is.
  [[nodiscard]] std::span<std::byte> values(std::uint32_t parameter);
  /// Whether that is memory of a GPU.
  [[nodiscard]] bool keeps_on_gpu(std::uint32_t parameter) const;
  /// Makes the master follow `values` that the framework has written, also between a gradient and
  /// its step; the moments stay. `writers`: work that may still be writing them. Throws
  /// `Error{invalid_argument}` where nobody has waited for a deferred update, which may have
  /// overwritten them.
  void take_values(std::uint32_t parameter, const offload::ExternalWork& writers = {},
                   TakenValues which = TakenValues::all);
  /// Forgets what is uploaded ahead, after the framework has written `values` of streamed
  /// parameters: passes that begin from now on read them. Masters stay until `take_values`.
  void forget_uploads();

  /// Begins a pass of a unit, where parameters are streamed: blocks until they are on the device.
  /// Units that come in order, forward or in reverse, are uploaded ahead; any other order works,
  /// and waits. One thread at a time.
  void enter(std::uint32_t unit, EmbeddedPass pass);
  /// Returns where a parameter of an entered unit is on the device, until `leave`.
  [[nodiscard]] std::span<std::byte> device_values(std::uint32_t parameter);
  /// Returns where a frozen tensor is kept, or where it is on the device until `leave`: [bytes].
  /// The framework may write where it is kept, between passes. One of a unit on disk is kept in a
  /// mapping of the file: passes do not see what is written there, but what `write_frozen` is
  /// given.
  [[nodiscard]] std::span<std::byte> frozen_values(std::uint32_t frozen);
  [[nodiscard]] std::span<std::byte> device_frozen(std::uint32_t frozen);
  /// Writes frozen tensors of units where they are kept, for passes that begin from now on. On
  /// disk, those of a unit that come in one call are written together.
  void write_frozen(std::span<const FrozenValues> values);
  /// Whether a frozen tensor is kept in memory of a GPU.
  [[nodiscard]] bool keeps_frozen_on_gpu(std::uint32_t frozen) const;
  /// Ends the pass: another unit may take the memory of its parameters once `readers` have ended.
  /// Leave a pass that has failed, too: until then calls that end passes, or begin others, throw
  /// `Error{invalid_argument}`.
  void leave(std::uint32_t unit, const offload::ExternalWork& readers = {});

  /// Frees all memory of the device, between steps, for a program that needs it meanwhile, once
  /// `users` have ended. Until `resume_device`, `values` and `frozen_values` are in host memory,
  /// where the program may read and write them, and state may be read, written and saved. Calls
  /// that need the device throw `Error{invalid_argument}`: passes, gradients, steps and `load`.
  /// Throws `std::bad_alloc`, and has changed nothing, where frozen tensors that stay on the device
  /// have no room on the host. Nothing happens if the memory is free.
  void release_device(const offload::ExternalWork& users = {});
  /// Takes as much memory again, at other addresses, and brings back what `values` and
  /// `frozen_values` are by now. Throws `Error{out_of_memory}`, and has taken nothing, where the
  /// device lacks memory; it can be called again then. Nothing happens if the memory is there.
  void resume_device();
  /// Whether the memory of the device is free.
  [[nodiscard]] bool is_released() const;

  /// Copies a gradient, [elements] of the dtype, or adds it to those before. Blocks for that, and
  /// while an update still reads the gradient of the step before.
  void add_gradient(std::uint32_t parameter, std::span<const std::byte> gradient);
  /// Adds a gradient likewise from the device, by a thread of the trainer's own. Blocks while an
  /// earlier gradient of the parameter is on its way, and for `gradient_memory`; never for what
  /// computes the gradient.
  void add_device_gradient(std::uint32_t parameter, const DeviceGradient& gradient);
  /// Whether a gradient of the parameter is still being read in the memory of the device, which
  /// must not be used again before. After `grad_norm`, `step` or `discard_gradients`, none is.
  [[nodiscard]] bool reads_gradient(std::uint32_t parameter) const;
  /// Forgets the gradients of this step.
  void discard_gradients();
  /// Forgets the gradients of one parameter.
  void discard_gradient(std::uint32_t parameter);
  /// Reads the sum of a parameter's gradients in this step into [elements]; zeros where none came.
  void read_gradient(std::uint32_t parameter, std::span<float> sum);
  /// Reads the sum of the gradients that a parameter had in the last step in which it had any, if
  /// none has come since, into [elements]. A deferred update of that step may be running, and a
  /// unit may be entered.
  void read_last_gradient(std::uint32_t parameter, std::span<float> sum) const;
  /// Replaces that sum by [elements], which are rounded to the dtype where a step has one gradient
  /// of each parameter. Throws `Error{invalid_argument}` where none came.
  void write_gradient(std::uint32_t parameter, std::span<const float> sum);
  /// Takes more gradients of this step, also after `grad_norm` or `leaf_sums`, whose results are
  /// of those so far. This, the three calls above, `take_values` and `read_state` end the plan that
  /// computes norms while gradients come: it runs once more at the end of the step.
  void reopen_gradients();
  /// Completes the gradients of the step and returns their global norm, the divisor applied.
  /// `step`, `discard_gradients` or `reopen_gradients` is next.
  [[nodiscard]] double grad_norm(double gradient_divisor = 1);
  /// Completes them likewise, and returns what their norm is made of until the next call of this
  /// object: for each parameter in order one sum of squares for each kLeafParameters elements, no
  /// divisor applied.
  [[nodiscard]] std::span<const double> leaf_sums();
  EmbeddedResult step(const EmbeddedStep& step);
  /// Blocks until the parameter has every update that was decided; where it is kept, if it is
  /// streamed. Throws `Error{invalid_argument}` for one that is streamed if a unit is entered in
  /// the forward pass of that update.
  void wait(std::uint32_t parameter);
  /// Blocks likewise for all parameters.
  void wait();

  [[nodiscard]] const cpu_adam::AdamOptions& group(std::uint32_t group) const;
  /// Sets the options of a group from the next `step` on. The optimizer of a group stays what it
  /// is.
  void set_group(std::uint32_t group, const cpu_adam::AdamOptions& options);
  [[nodiscard]] std::uint64_t steps() const;    ///< skipped ones included
  [[nodiscard]] std::uint64_t updates() const;  ///< applied or decided: Adam's t
  void set_updates(std::uint64_t updates);
  /// Returns how often a parameter was updated, which is its own t where steps skip parameters.
  [[nodiscard]] std::uint64_t updates(std::uint32_t parameter) const;
  void set_updates(std::uint32_t parameter, std::uint64_t updates);

  // State, one parameter at a time. These block, and what replaces it throws
  // `Error{invalid_argument}` while there is a gradient of the step.

  /// Reads the state into spans of [elements]; empty ones are left out.
  void read_state(std::uint32_t parameter, std::span<float> master, std::span<float> m,
                  std::span<float> v);
  /// Replaces the state by a master and moments of [elements]. An empty master keeps the old one;
  /// empty moments are zeros. The values follow a master. Calls for parameters in their order read
  /// and write each tile of the disk once, at the latest when a step begins.
  void write_state(std::uint32_t parameter, std::span<const float> master, std::span<const float> m,
                   std::span<const float> v);
  /// Writes a checkpoint of all state into a folder that does not exist yet; it is whole and
  /// durable once this returns, and no checkpoint before that. Gradients of the step under way stay
  /// where they are, and are not in it.
  void save(const std::filesystem::path& directory);
  /// Takes the state of a checkpoint of the same parameters, groups, units, formats and
  /// `tile_parameters`, on whatever tier.
  /// Throws `Error{corrupt_data}` for a damaged one, and has then changed nothing: all of it is
  /// read once before anything is taken.
  void load(const std::filesystem::path& directory);

  /// Ends the trainer, after an update that is decided, and returns the memory that it has handed
  /// out. Nothing else may be called then.
  [[nodiscard]] EndedMemory end() noexcept;

  /// Returns every byte that this object holds, by tier and purpose.
  [[nodiscard]] std::vector<plan::MemoryItem> memory() const;
  [[nodiscard]] EmbeddedUse use() const;
  /// Writes when each operation of the first twenty plans ran, as JSON for chrome://tracing and
  /// ui.perfetto.dev, and with cuda each copy of a gradient. A step has one plan with
  /// `defers_updates`, else one more for its update.
  void write_trace(const std::filesystem::path& path) const;

 private:
  std::unique_ptr<EmbeddedParts> parts_;
};

}  // namespace spillway::engine
