// ParameterState: the state of one parameter at a time, between plans. What lies on disk is staged
// a tile at a time. Nothing else may run meanwhile, whichever thread calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/engine/embedded/plan/layout.hpp"
#include "runtime/engine/embedded/values/values.hpp"
#include "runtime/engine/embedded_trainer.hpp"
#include "runtime/engine/step/step_engine.hpp"

namespace spillway::engine {

class ParameterState {
 public:
  /// All arguments outlive this object.
  ParameterState(StepEngine& engine, EmbeddedValues& values, const EmbeddedLayout& layout);

  // As EmbeddedTrainer describes these

  void read(std::uint32_t parameter, const cpu_adam::WideState& wide);
  void write(std::uint32_t parameter, const cpu_adam::ConstWideState& wide);
  void take_values(std::uint32_t parameter, const offload::ExternalWork& writers,
                   TakenValues which);

  /// Throws `Error{corrupt_data}` that names a parameter whose state is new in a part alone.
  void check_whole() const;
  /// Marks all state as partly new, before something else replaces all of it, and what is staged as
  /// old.
  void begin_replacement();
  /// Marks all state as whole.
  void end_replacement();
  /// Makes masters follow all values, writes what is staged, and frees the staging buffer.
  void settle();
  /// Writes the staged tile to the disk if it is new there, and frees the staging buffer.
  void unstage();

 private:
  /// The piece of a tile that belongs to one parameter.
  struct Piece {
    std::uint32_t tile;
    std::uint64_t first;         ///< in the tile
    std::uint64_t of_parameter;  ///< in the parameter
    std::uint64_t count;
    bool whole;  ///< it is all of the tile
  };
  /// What of a parameter's state is only partly new, because a call that replaced it failed.
  struct Torn {
    bool masters = false;
    bool moments = false;
    [[nodiscard]] bool any() const { return masters || moments; }
  };
  template <class Visit>
  void visit_pieces(const ParameterRange& range, const Visit& visit);
  /// Returns where the state of a piece lies in its tile.
  [[nodiscard]] cpu_adam::StateLayout layout_of(const Piece& piece) const;
  /// Returns the values of a piece on the host.
  [[nodiscard]] std::byte* values_of(const Piece& piece);
  /// Returns the staging buffer of state calls, as a slot of the tile.
  [[nodiscard]] std::span<std::byte> staging_of(std::uint32_t tile);
  /// Whether a call needs what a tile holds.
  enum class Content : std::uint8_t { kept, replaced };
  /// Returns the state of the piece's tile in memory. What lies on disk is staged, where the next
  /// parameter of that tile finds it.
  [[nodiscard]] std::byte* state_of(const Piece& piece, Content content);
  void read_piece(const Piece& piece, const cpu_adam::WideState& wide);
  void write_piece(const Piece& piece, const cpu_adam::ConstWideState& wide);
  /// Makes masters follow values, and returns whether one has changed.
  [[nodiscard]] bool take_piece(const Piece& piece, TakenValues which);
  void follow(const ParameterRange& range, TakenValues which);
  void check_whole(std::uint32_t parameter) const;

  StepEngine& engine_;
  EmbeddedValues& values_;
  const EmbeddedLayout& layout_;
  const StateSlots& slots_;
  const DType dtype_;
  const cpu_adam::Isa isa_;
  std::vector<Torn> torn_;               ///< by parameter
  std::optional<std::uint32_t> staged_;  ///< the tile that a call has staged
  bool staged_is_new_ = false;           ///< what is staged is not on the disk yet
};

}  // namespace spillway::engine
