// The update of a range in format int8: what one warp of the kernel does with one quantization
// block. The host runs it for every block to test it.
//
// A boundary between groups inside a block is what cpu_adam::update makes of it: there both moments
// are decoded and encoded again, also the one that the optimizer does not keep.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "cpu_adam/codec.hpp"
#include "cpu_adam/cuda/detail/codec_tables.hpp"
#include "cpu_adam/cuda/detail/update_body.hpp"
#include "cpu_adam/cuda/device_update.hpp"
#include "runtime/base/team.hpp"

namespace spillway::cpu_adam::cuda::detail {

static_assert(kQuantizationBlock == kWarpLanes * kPart);

/// Describes one launch. The first `group_count` of `groups` are those that have a part in the
/// range, in order.
struct QuantizedJob {
  UpdateRange range;
  ParameterGroup groups[kMaxQuantizedGroups];
  std::uint32_t group_count;
  bool aligned;  ///< whole parts may start at each multiple of kPart

  [[nodiscard]] SPILLWAY_HOST_DEVICE std::size_t blocks() const {
    return (range.count + kQuantizationBlock - 1) / kQuantizationBlock;
  }
};

/// Returns the group of the parameter with this index in its block of the model.
SPILLWAY_HOST_DEVICE inline std::uint32_t group_of(const QuantizedJob& job, std::uint64_t index) {
  std::uint32_t group = 0;
  while (group + 1 < job.group_count && job.groups[group].end <= index) ++group;
  return group;
}

/// One quantization block: `count` parameters from `first` on, of the groups from `first_group` to
/// `last_group`.
struct QuantizedBlock {
  std::size_t first;
  std::size_t count;
  std::uint32_t first_group;
  std::uint32_t last_group;
  bool writes_m;
  bool writes_v;
};

SPILLWAY_HOST_DEVICE inline QuantizedBlock block_at(const QuantizedJob& job, std::size_t number) {
  QuantizedBlock block{};
  block.first = number * kQuantizationBlock;
  const std::size_t rest = job.range.count - block.first;
  block.count = rest < kQuantizationBlock ? rest : kQuantizationBlock;
  const std::uint64_t index = job.range.index + block.first;
  block.first_group = group_of(job, index);
  block.last_group = group_of(job, index + block.count - 1);
  const bool mixed = block.first_group != block.last_group;
  const Optimizer optimizer = job.groups[block.first_group].scalars.optimizer;
  block.writes_m = (mixed || uses_m(optimizer)) && job.range.m_out != nullptr;
  block.writes_v = (mixed || uses_v(optimizer)) && job.range.v_out != nullptr;
  return block;
}

/// Elements of one lane.
struct QuantizedPart {
  std::size_t first;
  std::size_t count;  ///< of kPart; the others count as zero
  bool aligned;
};

SPILLWAY_HOST_DEVICE inline QuantizedPart part_of(const QuantizedJob& job,
                                                  const QuantizedBlock& block, unsigned lane) {
  const std::size_t start = lane * kPart;
  const std::size_t rest = block.count > start ? block.count - start : 0;
  const std::size_t count = rest < kPart ? rest : kPart;
  return {.first = block.first + start, .count = count, .aligned = job.aligned && count == kPart};
}

template <class T>
SPILLWAY_HOST_DEVICE Vector<T, kPart> load_part(const void* base, const QuantizedPart& part) {
  if (part.aligned) return load<T, kPart>(base, part.first);
  Vector<T, kPart> values{};
  for (std::size_t j = 0; j < kPart; ++j) {
    if (j < part.count) values.values[j] = static_cast<const T*>(base)[part.first + j];
  }
  return values;
}

template <class T>
SPILLWAY_HOST_DEVICE void store_part(void* base, const QuantizedPart& part,
                                     const Vector<T, kPart>& values) {
  if (part.aligned) return store(base, part.first, values);
  for (std::size_t j = 0; j < kPart; ++j) {
    if (j < part.count) static_cast<T*>(base)[part.first + j] = values.values[j];
  }
}

/// Decodes what the block writes again; the rest stays zero.
SPILLWAY_HOST_DEVICE inline void read_state(const QuantizedJob& job, const CodecTables& tables,
                                            const QuantizedBlock& block, const QuantizedPart& part,
                                            Wide<kPart>& wide) {
  const UpdateRange& range = job.range;
  const std::size_t scale = block.first / kQuantizationBlock * 2;
  const auto upper = load_part<std::uint16_t>(range.parameters_in, part);
  const auto lower = load_part<std::int16_t>(range.master_in, part);
  for (std::size_t j = 0; j < kPart; ++j) {
    wide.master[j] = join_master(upper.values[j], lower.values[j]);
  }
  if (block.writes_m) {
    const float unit = range.scales_in[scale];
    const auto codes = load_part<std::int8_t>(range.m_in, part);
    for (std::size_t j = 0; j < kPart; ++j) {
      wide.m[j] = decode_m(tables.m, codes.values[j], unit);
    }
  }
  if (block.writes_v) {
    const float unit = range.scales_in[scale + 1];
    const auto codes = load_part<std::uint8_t>(range.v_in, part);
    for (std::size_t j = 0; j < kPart; ++j) {
      wide.v[j] = decode_v(tables.v, codes.values[j], unit);
    }
  }
}

template <DType Gradient>
SPILLWAY_HOST_DEVICE void update_lane(const QuantizedJob& job, const QuantizedBlock& block,
                                      const QuantizedPart& part, Wide<kPart>& wide) {
  const auto landed = load_part<BitsOf<Gradient>>(job.range.gradient, part);
  float gradient[kPart];
  for (std::size_t j = 0; j < kPart; ++j) gradient[j] = widen<Gradient>(landed.values[j]);
  if (block.first_group == block.last_group) {
    return update_elements(job.groups[block.first_group].scalars, wide, gradient);
  }
  for (std::size_t j = 0; j < kPart; ++j) {
    const std::uint32_t group = group_of(job, job.range.index + part.first + j);
    const ElementState old{.master = wide.master[j], .m = wide.m[j], .v = wide.v[j]};
    const ElementState next = update_element(job.groups[group].scalars, old, gradient[j]);
    wide.master[j] = next.master;
    wide.m[j] = next.m;
    wide.v[j] = next.v;
  }
}

SPILLWAY_HOST_DEVICE inline std::uint32_t largest_magnitude(const float (&values)[kPart],
                                                            std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t j = 0; j < kPart; ++j) {
    const std::uint32_t magnitude = j < count ? magnitude_bits(values[j]) : 0;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

/// Takes scale_m, scale_v: the largest magnitude of each moment in the block.
SPILLWAY_HOST_DEVICE inline void write_state(const QuantizedJob& job, const CodecTables& tables,
                                             const QuantizedBlock& block, const QuantizedPart& part,
                                             const Wide<kPart>& wide, float scale_m,
                                             float scale_v) {
  Vector<std::int16_t, kPart> remainders;
  Vector<std::uint16_t, kPart> parameters;
  for (std::size_t j = 0; j < kPart; ++j) {
    remainders.values[j] = remainder_of(wide.master[j]);
    parameters.values[j] = parameter_to_bf16(wide.master[j]);
  }
  store_part(job.range.master_out, part, remainders);
  if (job.range.parameters_out != nullptr) store_part(job.range.parameters_out, part, parameters);
  if (block.writes_m) {
    const float inverse = inverse_scale(scale_m);
    Vector<std::int8_t, kPart> codes;
    for (std::size_t j = 0; j < kPart; ++j) {
      codes.values[j] = encode_m(tables.m, wide.m[j], inverse);
    }
    store_part(job.range.m_out, part, codes);
  }
  if (block.writes_v) {
    const float inverse = inverse_scale(scale_v);
    Vector<std::uint8_t, kPart> codes;
    for (std::size_t j = 0; j < kPart; ++j) {
      codes.values[j] = encode_v(tables.v, wide.v[j], inverse);
    }
    store_part(job.range.v_out, part, codes);
  }
}

template <DType Gradient, class Warp>
SPILLWAY_HOST_DEVICE void update_quantized(const Warp& warp, const QuantizedJob& job,
                                           const CodecTables& tables, std::size_t number) {
  const QuantizedBlock block = block_at(job, number);
  typename Warp::template Lanes<Wide<kPart>> state;
  typename Warp::template Lanes<std::uint32_t> largest_m, largest_v;
  warp.each([&](unsigned lane) {
    const QuantizedPart part = part_of(job, block, lane);
    Wide<kPart>& wide = state[lane];
    wide = {};
    read_state(job, tables, block, part, wide);
    update_lane<Gradient>(job, block, part, wide);
    largest_m[lane] = largest_magnitude(wide.m, part.count);
    largest_v[lane] = largest_magnitude(wide.v, part.count);
  });
  const auto larger = [](std::uint32_t a, std::uint32_t b) { return a > b ? a : b; };
  const auto scale_m = std::bit_cast<float>(warp.reduce(largest_m, larger));
  const auto scale_v = std::bit_cast<float>(warp.reduce(largest_v, larger));
  warp.each([&](unsigned lane) {
    write_state(job, tables, block, part_of(job, block, lane), state[lane], scale_m, scale_v);
    if (lane != 0) return;
    const std::size_t scale = number * 2;
    if (block.writes_m) job.range.scales_out[scale] = scale_m;
    if (block.writes_v) job.range.scales_out[scale + 1] = scale_v;
  });
}

}  // namespace spillway::cpu_adam::cuda::detail
