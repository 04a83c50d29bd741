#include "cpu_adam/update.hpp"

#include <algorithm>
#include <cstring>

#include "cpu_adam/detail/kernel_set.hpp"
#include "cpu_adam/gradient_norm.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/units.hpp"

namespace spillway::cpu_adam {
namespace {

using detail::advance;

/// Calls body(scalars, first, last) for the parts of [first, last), indices in the range.
template <class Body>
void for_each_group(std::span<const ParameterGroup> groups, std::uint64_t index, std::size_t first,
                    std::size_t last, const Body& body) {
  for (const ParameterGroup& group : groups) {
    if (first == last) return;
    if (group.end <= index + first) continue;
    const std::size_t end = std::min<std::uint64_t>(last, group.end - index);
    if (!group.skips) body(group.scalars, first, end);
    first = end;
  }
  SPILLWAY_ASSERT(first == last && "parameters that belong to no group");
}

/// Moves `count` elements of `size` bytes; state that the optimizer does not keep stays where it
/// is.
void move_part(void* target, const void* source, std::size_t size, std::size_t count) {
  if (target != nullptr && source != nullptr) std::memcpy(target, source, size * count);
}

/// The state of one quantization block as a tile of its own.
struct BlockState {
  BlockState() : layout(make_layout(StateFormat::int8, kQuantizationBlock)) {}

  void load(const UpdateRange& range) {
    pack_state(layout, {.master = kZeros, .m = {}, .v = {}}, bytes, parameters);
    move_part(bytes + layout.master, range.master_in, 2, range.count);
    move_part(bytes + layout.m, range.m_in, 1, range.count);
    move_part(bytes + layout.v, range.v_in, 1, range.count);
    move_part(bytes + layout.scales, range.scales_in, sizeof(float), 2);
    move_part(parameters, range.parameters_in, 2, range.count);
  }
  void store(const UpdateRange& range) const {
    move_part(range.master_out, bytes + layout.master, 2, range.count);
    move_part(range.m_out, bytes + layout.m, 1, range.count);
    move_part(range.v_out, bytes + layout.v, 1, range.count);
    move_part(range.scales_out, bytes + layout.scales, sizeof(float), 2);
    move_part(range.parameters_out, parameters, 2, range.count);
  }

  const StateLayout layout;
  static constexpr float kZeros[kQuantizationBlock] = {};
  alignas(64) std::byte bytes[4096];
  alignas(64) std::byte parameters[2 * kQuantizationBlock];
};

/// A quantization block with a boundary inside: its scales depend on both sides, so it is updated
/// as fp32 state between decoding and encoding. The same bits as the kernel gives one group.
void update_mixed_block(const Kernel& kernel, std::span<const ParameterGroup> groups,
                        const UpdateRange& range) {
  BlockState state;
  SPILLWAY_ASSERT(state.layout.bytes <= sizeof state.bytes);
  state.load(range);
  float master[kQuantizationBlock];
  float m[kQuantizationBlock];
  float v[kQuantizationBlock];
  unpack_state(state.layout, state.bytes, state.parameters, {.master = master, .m = m, .v = v});
  const Kernel& wide = find_kernel(kernel.isa, kernel.gradient_dtype, DType::fp32);
  const UpdateRange whole{.gradient = range.gradient,
                          .master_in = master,
                          .m_in = m,
                          .v_in = v,
                          .master_out = master,
                          .m_out = m,
                          .v_out = v,
                          .count = range.count};
  for_each_group(groups, range.index, 0, range.count,
                 [&](const UpdateScalars& scalars, std::size_t first, std::size_t last) {
                   wide.update(scalars, slice(wide, whole, first, last - first));
                 });
  pack_state(state.layout, {.master = master, .m = m, .v = v}, state.bytes, state.parameters);
  state.store(range);
}

/// Whole quantization blocks to the kernel, those with a boundary inside to update_mixed_block.
void update_blocks(const Kernel& kernel, std::span<const ParameterGroup> groups,
                   const UpdateRange& range) {
  SPILLWAY_ASSERT(range.index % kQuantizationBlock == 0);
  std::size_t done = 0;
  for_each_group(groups, range.index, 0, range.count,
                 [&](const UpdateScalars& scalars, std::size_t first, std::size_t last) {
                   first = std::max(first, done);
                   if (first >= last) return;
                   const bool ends = last == range.count;
                   const std::size_t whole = ends ? last : last - last % kQuantizationBlock;
                   if (first < whole) {
                     kernel.update(scalars, slice(kernel, range, first, whole - first));
                   }
                   done = whole;
                   if (whole == last) return;
                   done = std::min(whole + kQuantizationBlock, range.count);
                   update_mixed_block(kernel, groups, slice(kernel, range, whole, done - whole));
                 });
}

void update_groups(const Kernel& kernel, std::span<const ParameterGroup> groups,
                   const UpdateRange& range) {
  if (kernel.format == StateFormat::int8) return update_blocks(kernel, groups, range);
  for_each_group(groups, range.index, 0, range.count,
                 [&](const UpdateScalars& scalars, std::size_t first, std::size_t last) {
                   kernel.update(scalars, slice(kernel, range, first, last - first));
                 });
}

}  // namespace

void update(const Kernel& kernel, std::span<const ParameterGroup> groups, const UpdateRange& range,
            std::span<const void* const> more_gradients) {
  if (more_gradients.empty()) return update_groups(kernel, groups, range);
  const Kernel& wide = find_kernel(kernel.isa, DType::fp32, kernel.parameter_dtype, kernel.format);
  alignas(64) float sum[kLeafParameters];
  const std::size_t size = size_of(kernel.gradient_dtype);
  for (std::size_t first = 0; first < range.count;) {
    const std::size_t to_leaf = kLeafParameters - (range.index + first) % kLeafParameters;
    const std::size_t count = std::min(range.count - first, to_leaf);
    const std::span<float> part(sum, count);
    accumulate(kernel.isa, kernel.gradient_dtype, advance(range.gradient, size, first), part,
               /*first=*/true);
    for (const void* const gradient : more_gradients) {
      accumulate(kernel.isa, kernel.gradient_dtype, advance(gradient, size, first), part,
                 /*first=*/false);
    }
    UpdateRange leaf = slice(wide, range, first, count);
    leaf.gradient = sum;
    update_groups(wide, groups, leaf);
    first += count;
  }
}

}  // namespace spillway::cpu_adam
