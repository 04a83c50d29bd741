// State formats: what the optimizer keeps of a parameter between steps, and where it lies.
//
// | format | master                           | m, v                         | bytes (+ 2, p16) |
// |--------|----------------------------------|------------------------------|------------------|
// | fp32   | fp32                             | fp32                         | 12               |
// | split  | bf16 parameter, 16-bit remainder | fp32                         | 10               |
// | bf16   | the same                         | bf16, rounded stochastically | 6                |
// | int8   | the same                         | 8-bit codes, a scale per 256 | 4.03             |
//
// Remainder: with p16 = (bits + 0x8000) >> 16 the master's bits less p16 << 16, in [-32768, 32767]:
// bits = (p16 << 16) + remainder gives back every master exactly, NaN payloads aside.
// The codes are the dynamic maps of Dettmers et al. 2022 ("8-bit optimizers via block-wise
// quantization"), signed for m and unsigned for v; cpu_adam/codec.hpp has the arithmetic.
// Any thread may call anything here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/dtype.hpp"
#include "runtime/base/state_format.hpp"

namespace spillway::cpu_adam {

/// Parameters that share a scale of m and one of v in format int8.
inline constexpr std::size_t kQuantizationBlock = 256;

/// Bytes of the master (or of its remainder), and of m or v, of one parameter.
constexpr std::size_t master_size(StateFormat format) {
  return format == StateFormat::fp32 ? 4 : 2;
}
constexpr std::size_t moment_size(StateFormat format) {
  if (format == StateFormat::bf16) return 2;
  return format == StateFormat::int8 ? 1 : 4;
}
/// Whether the state is incomplete without the 16-bit parameters, which then are bf16.
constexpr bool needs_parameters(StateFormat format) { return format != StateFormat::fp32; }

/// Places of the arrays of a tile's state: byte offsets from its start, each a multiple of 64, and
/// every two of them staggered (runtime/base/stagger.hpp), with unused pages between them if need
/// be: in a tile of 2 Mi parameters 16 KiB before each array but the first.
/// In a tile that starts on a leaf and is a whole number of leaves (4,096 parameters) long, each
/// leaf's part of each array lies on a multiple of 64 bytes, and of 4 KiB but for `scales`.
struct StateLayout {
  StateFormat format = StateFormat::fp32;
  std::size_t count = 0;   ///< parameters
  std::size_t master = 0;  ///< [count] fp32, or int16 remainders
  std::size_t m = 0;       ///< [count]
  std::size_t v = 0;       ///< [count]
  std::size_t scales = 0;  ///< [ceil(count / 256)][2] fp32: of m and v (int8)
  std::size_t bytes = 0;   ///< of all these, a multiple of 4 KiB: what an update reads of a slot
  /// A slot on disk also holds the bf16 parameters, behind the rest ([count] at `parameters`), so
  /// that recovery needs nothing else. In format fp32 they follow from the master.
  std::size_t parameters = 0;
  std::size_t disk_bytes = 0;  ///< a multiple of 4 KiB
};

[[nodiscard]] StateLayout make_layout(StateFormat format, std::size_t count);
/// Returns where parameters [first, first + count) of a state lie, as offsets from the start of the
/// whole. `first` is a multiple of `kQuantizationBlock`, unless only masters are read. A part has
/// no bytes of its own that `pack_state` would clear.
[[nodiscard]] StateLayout part_of(const StateLayout& whole, std::size_t first, std::size_t count);

/// A tile's state in fp32, whatever its own type: [count] each. Outputs and inputs of conversions.
struct WideState {
  std::span<float> master, m, v;
};
struct ConstWideState {
  std::span<const float> master, m, v;
};

/// Makes the state with this master and, where they are given (else empty), these moments; zero
/// otherwise. `state`: `layout.bytes`, all of them written. `parameters`: [count] bf16, written in
/// every format but fp32, where it may be null. m and v round to nearest (even in bf16, the nearest
/// code in int8).
void pack_state(const StateLayout& layout, const ConstWideState& wide, std::byte* state,
                void* parameters);

/// Replaces the moments alone, likewise; `wide` has no master.
void pack_moments(const StateLayout& layout, const ConstWideState& wide, std::byte* state);

/// Reverses `pack_state`, exactly for the master; leaves out empty spans of `wide`.
void unpack_state(const StateLayout& layout, const std::byte* state, const void* parameters,
                  const WideState& wide);

/// Copies a slot as it lies on disk, or a part of one, to another of the same format and count. No
/// bit of master, moments and parameters changes.
void copy_state(const StateLayout& source_layout, const std::byte* source,
                const StateLayout& target_layout, std::byte* target);

}  // namespace spillway::cpu_adam
