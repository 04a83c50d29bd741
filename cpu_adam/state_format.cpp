#include "cpu_adam/state_format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "cpu_adam/codec.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/simd/flush_denormals.hpp"
#include "runtime/base/stagger.hpp"

namespace spillway::cpu_adam {
namespace {

constexpr std::size_t kParameterSize = 2;

/// Returns the size in bytes of the scales of m and v in format int8.
constexpr std::size_t scales_bytes(std::size_t count) {
  return round_up(count, kQuantizationBlock) / kQuantizationBlock * 2 * sizeof(float);
}

template <class T>
void put(std::byte* array, std::size_t i, T value) {
  std::memcpy(array + i * sizeof(T), &value, sizeof(T));
}

template <class T>
T get(const std::byte* array, std::size_t i) {
  T value;
  std::memcpy(&value, array + i * sizeof(T), sizeof(T));
  return value;
}

enum class Moment : std::uint8_t { m, v };

/// One quantization block of codes. Not inlined into the scope of the FlushDenormals guard.
[[gnu::noinline]] void encode_block(Moment which, std::span<const float> values, std::byte* codes,
                                    std::byte* scale) {
  std::uint32_t largest = 0;
  for (const float value : values) largest = std::max(largest, magnitude_bits(value));
  std::memcpy(scale, &largest, sizeof largest);
  const float inverse = inverse_scale(std::bit_cast<float>(largest));
  for (std::size_t j = 0; j < values.size(); ++j) {
    if (which == Moment::m) {
      put(codes, j, encode_signed(values[j], inverse));
    } else {
      put(codes, j, encode_unsigned(values[j], inverse));
    }
  }
}

[[gnu::noinline]] void decode_block(Moment which, std::span<float> values, const std::byte* codes,
                                    float scale) {
  for (std::size_t j = 0; j < values.size(); ++j) {
    values[j] = which == Moment::m ? decode_signed(get<std::int8_t>(codes, j), scale)
                                   : decode_unsigned(get<std::uint8_t>(codes, j), scale);
  }
}

/// Calls body(block, first, count) for each quantization block.
template <class Body>
void for_each_block(std::size_t count, const Body& body) {
  for (std::size_t first = 0; first < count; first += kQuantizationBlock) {
    body(first / kQuantizationBlock, first, std::min(kQuantizationBlock, count - first));
  }
}

std::byte* scale_of(const StateLayout& layout, Moment which, std::size_t block, std::byte* state) {
  return state + layout.scales + (2 * block + (which == Moment::m ? 0 : 1)) * sizeof(float);
}

void pack_moment(const StateLayout& layout, Moment which, std::span<const float> values,
                 std::byte* state) {
  std::byte* const out = state + (which == Moment::m ? layout.m : layout.v);
  switch (layout.format) {
    case StateFormat::fp32:
    case StateFormat::split: std::memcpy(out, values.data(), values.size_bytes()); return;
    case StateFormat::bf16:
      for (std::size_t i = 0; i < values.size(); ++i) put(out, i, to_bf16(values[i]));
      return;
    case StateFormat::int8: break;
  }
  const simd::FlushDenormals guard;
  for_each_block(layout.count, [&](std::size_t block, std::size_t first, std::size_t count) {
    encode_block(which, values.subspan(first, count), out + first,
                 scale_of(layout, which, block, state));
  });
}

void unpack_moment(const StateLayout& layout, Moment which, const std::byte* state,
                   std::span<float> values) {
  const std::byte* const in = state + (which == Moment::m ? layout.m : layout.v);
  switch (layout.format) {
    case StateFormat::fp32:
    case StateFormat::split: std::memcpy(values.data(), in, values.size_bytes()); return;
    case StateFormat::bf16:
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = from_bf16(get<std::uint16_t>(in, i));
      }
      return;
    case StateFormat::int8: break;
  }
  const simd::FlushDenormals guard;
  for_each_block(layout.count, [&](std::size_t block, std::size_t first, std::size_t count) {
    decode_block(which, values.subspan(first, count), in + first,
                 get<float>(state + layout.scales, 2 * block + (which == Moment::m ? 0 : 1)));
  });
}

/// No moments: zero in every format, and so are their scales.
void clear_moment(const StateLayout& layout, Moment which, std::byte* state) {
  std::byte* const out = state + (which == Moment::m ? layout.m : layout.v);
  std::memset(out, 0, layout.count * moment_size(layout.format));
  if (layout.format != StateFormat::int8) return;
  for_each_block(layout.count, [&](std::size_t block, std::size_t, std::size_t) {
    std::memset(scale_of(layout, which, block, state), 0, sizeof(float));
  });
}

void check_count(std::size_t given, std::size_t count, std::string_view name) {
  if (given == count || given == 0) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("state of {} parameters cannot be packed from or unpacked to {} {}",
                          count, given, name));
}

void check_moments(const StateLayout& layout, const ConstWideState& wide) {
  check_count(wide.m.size(), layout.count, "first moments");
  check_count(wide.v.size(), layout.count, "second moments");
}

void put_moments(const StateLayout& layout, const ConstWideState& wide, std::byte* state) {
  for (const Moment which : {Moment::m, Moment::v}) {
    const std::span<const float> values = which == Moment::m ? wide.m : wide.v;
    if (values.empty()) {
      clear_moment(layout, which, state);
    } else {
      pack_moment(layout, which, values, state);
    }
  }
}

}  // namespace

StateLayout make_layout(StateFormat format, std::size_t count) {
  const std::uint64_t moment = count * moment_size(format);
  const std::uint64_t scales = format == StateFormat::int8 ? scales_bytes(count) : 0;
  const auto arrays =
      stagger(std::array<std::uint64_t, 4>{count * master_size(format), moment, moment, scales});
  StateLayout layout{.format = format, .count = count};
  layout.master = arrays.starts[0];
  layout.m = arrays.starts[1];
  layout.v = arrays.starts[2];
  layout.scales = arrays.starts[3];
  layout.bytes = round_up(arrays.end, kPageBytes);
  layout.parameters = layout.bytes;
  layout.disk_bytes = needs_parameters(format)
                          ? round_up(layout.bytes + count * kParameterSize, kPageBytes)
                          : layout.bytes;
  return layout;
}

StateLayout part_of(const StateLayout& whole, std::size_t first, std::size_t count) {
  StateLayout part = whole;
  part.count = count;
  part.bytes = 0;
  part.master += first * master_size(whole.format);
  part.m += first * moment_size(whole.format);
  part.v += first * moment_size(whole.format);
  part.scales += first / kQuantizationBlock * 2 * sizeof(float);
  part.parameters += first * kParameterSize;
  return part;
}

void pack_state(const StateLayout& layout, const ConstWideState& wide, std::byte* state,
                void* parameters) {
  SPILLWAY_ASSERT(wide.master.size() == layout.count);
  check_moments(layout, wide);
  if (layout.count == 0) return;  // then the pointers may be null
  std::memset(state, 0, layout.bytes);
  auto* const rounded = static_cast<std::byte*>(parameters);
  for (std::size_t i = 0; i < layout.count; ++i) {
    if (layout.format == StateFormat::fp32) {
      put(state + layout.master, i, wide.master[i]);
    } else {
      put(state + layout.master, i, remainder_of(wide.master[i]));
      put(rounded, i, parameter_to_bf16(wide.master[i]));
    }
  }
  put_moments(layout, wide, state);
}

void pack_moments(const StateLayout& layout, const ConstWideState& wide, std::byte* state) {
  SPILLWAY_ASSERT(wide.master.empty());
  check_moments(layout, wide);
  put_moments(layout, wide, state);
}

void unpack_state(const StateLayout& layout, const std::byte* state, const void* parameters,
                  const WideState& wide) {
  check_count(wide.master.size(), layout.count, "masters");
  check_count(wide.m.size(), layout.count, "first moments");
  check_count(wide.v.size(), layout.count, "second moments");
  if (layout.count == 0) return;
  const auto* const rounded = static_cast<const std::byte*>(parameters);
  for (std::size_t i = 0; i < wide.master.size(); ++i) {
    wide.master[i] = layout.format == StateFormat::fp32
                         ? get<float>(state + layout.master, i)
                         : join_master(get<std::uint16_t>(rounded, i),
                                       get<std::int16_t>(state + layout.master, i));
  }
  if (!wide.m.empty()) unpack_moment(layout, Moment::m, state, wide.m);
  if (!wide.v.empty()) unpack_moment(layout, Moment::v, state, wide.v);
}

void copy_state(const StateLayout& source_layout, const std::byte* source,
                const StateLayout& target_layout, std::byte* target) {
  SPILLWAY_ASSERT(source_layout.format == target_layout.format &&
                  source_layout.count == target_layout.count);
  const auto copy = [&](std::size_t StateLayout::*array, std::size_t bytes) {
    std::memcpy(target + target_layout.*array, source + source_layout.*array, bytes);
  };
  const StateFormat format = source_layout.format;
  const std::size_t count = source_layout.count;
  copy(&StateLayout::master, count * master_size(format));
  copy(&StateLayout::m, count * moment_size(format));
  copy(&StateLayout::v, count * moment_size(format));
  if (format == StateFormat::int8) copy(&StateLayout::scales, scales_bytes(count));
  if (needs_parameters(format)) copy(&StateLayout::parameters, count * kParameterSize);
}

}  // namespace spillway::cpu_adam
