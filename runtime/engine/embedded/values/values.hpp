// EmbeddedValues: where values and gradients of registered tensors lie, and copies of values
// between the host and the device. Control thread, but where a function says otherwise.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "runtime/engine/embedded/plan/layout.hpp"
#include "runtime/engine/embedded/values/frozen_file.hpp"
#include "runtime/engine/embedded_trainer.hpp"
#include "runtime/engine/step/step_engine.hpp"

namespace spillway::engine {

/// The memory of parameters whose trainer has ended, where they are kept.
struct ParameterMemory {
  std::unique_ptr<offload::DeviceBackend> backend;  // it outlives what it has allocated
  std::array<offload::DeviceMemory, 2> device;      ///< of parameters and of frozen tensors
  std::array<offload::PinnedMemory, 2> host;        ///< likewise
  std::unique_ptr<std::byte[]> frozen_aside;        ///< if the device was released
  nvme_swap::MappedTiles frozen_tiles;              ///< of units, if they are on disk
};

/// The memory through which units passed on the device.
struct UnitMemory {
  std::shared_ptr<ParameterMemory> values;     // whose backend outlives the slots
  std::array<offload::DeviceMemory, 2> slots;  ///< of parameters and of frozen tensors
};

class EmbeddedValues {
 public:
  /// `engine`, whose memory this finds, outlives it.
  explicit EmbeddedValues(StepEngine& engine);

  /// Whether the parameter stays on the device, and is there. Any thread.
  [[nodiscard]] bool is_resident(const ParameterRange& range) const;
  /// Returns where the parameter lies on the host. Any thread.
  [[nodiscard]] std::span<std::byte> host(const ParameterRange& range);
  /// Returns where a parameter that stays on the device lies there. Any thread.
  [[nodiscard]] offload::DeviceSpan<std::byte> resident(const ParameterRange& range);
  /// Returns where the parameter is kept: on the device if it stays there. Any thread.
  [[nodiscard]] std::span<std::byte> kept(const ParameterRange& range);
  /// Returns where a frozen tensor is kept: on the host or in a mapping of its file, or on the
  /// device if it is of no unit. Any thread.
  [[nodiscard]] std::span<std::byte> frozen(const FrozenRange& range);
  /// Returns where the parameter's gradient waits for the update. Any thread.
  [[nodiscard]] std::span<std::byte> gradient(const ParameterRange& range);

  /// Copies a resident parameter from the device, which the framework has written, or to it.
  void download(const ParameterRange& range);
  void upload(const ParameterRange& range);
  void write_frozen(std::vector<FrozenPiece> pieces);
  /// Writes zeros behind a parameter's gradient, up to the next leaf: nothing else writes there,
  /// and norms read it.
  void clear_padding(const ParameterRange& range);
  /// Orders copies to the device, or from it, behind the framework's work. A plan may be running.
  void order_uploads(const offload::ExternalWork& work);
  void order_downloads(const offload::ExternalWork& work);

  [[nodiscard]] offload::DeviceBackend& backend() const { return engine_.backend(); }
  /// Returns what the framework and the engine share of a GPU; null on the host. Any thread.
  [[nodiscard]] offload::SharedDevice* shared() const { return shared_; }
  /// Frees the memory of the device, once what lies there is in host memory, where `kept` and
  /// `frozen` find it, and `users` have ended. No state is staged: copies take that memory. Throws
  /// `std::bad_alloc`, and has changed nothing, if the host has no room for frozen tensors.
  void release_device(const EmbeddedLayout& layout, const offload::ExternalWork& users);
  /// Takes as much memory again, and brings back what lies on the host. No state is staged. Throws
  /// `Error{out_of_memory}`, and has taken nothing, where somebody else has it.
  void resume_device(const EmbeddedLayout& layout);
  /// Whether the device has no memory of this object. Any thread.
  [[nodiscard]] bool is_released() const { return released_; }
  /// Gives away the memory of all values. Nothing runs any more; only destructors may follow.
  [[nodiscard]] EndedMemory take_memory() noexcept;

 private:
  void order(offload::Stream& stream, const offload::ExternalWork& work);
  void upload_frozen(std::size_t at, std::span<const std::byte> values);
  void download_frozen(std::span<std::byte> values);

  StepEngine& engine_;
  offload::SharedDevice* const shared_;
  std::unique_ptr<offload::Event> external_;  ///< behind the framework's work
  FrozenFile frozen_file_;                    ///< of frozen tensors of units on disk
  bool released_ = false;
  std::unique_ptr<std::byte[]> frozen_aside_;  ///< those of the device while it is released
  // Empty until the end, which could not make them: memory may be lacking then.
  std::shared_ptr<ParameterMemory> taken_ = std::make_shared<ParameterMemory>();
  std::shared_ptr<UnitMemory> taken_units_ = std::make_shared<UnitMemory>();
};

}  // namespace spillway::engine
