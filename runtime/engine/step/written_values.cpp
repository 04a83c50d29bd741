#include "runtime/engine/step/written_values.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "runtime/engine/step/tile_update.hpp"

namespace spillway::engine {
namespace {

/// Elements that are rounded at once, into a buffer on the stack.
constexpr std::size_t kPiece = 1024;

template <class T>
T load(std::span<const std::byte> source, std::size_t index) {
  T value;
  std::memcpy(&value, source.data() + index * sizeof value, sizeof value);
  return value;
}

void take_values(DType dtype, std::span<const std::byte> values, std::span<const std::byte> rounded,
                 std::span<float> masters) {
  const std::size_t size = size_of(dtype);
  for (std::size_t i = 0; i < masters.size(); ++i) {
    const auto value = values.subspan(i * size, size);
    if (!std::ranges::equal(value, rounded.subspan(i * size, size))) {
      widen(dtype, value, masters.subspan(i, 1));
    }
  }
}

}  // namespace

void widen(DType dtype, std::span<const std::byte> source, std::span<float> target) {
  for (std::size_t i = 0; i < target.size(); ++i) {
    switch (dtype) {
      case DType::fp32: target[i] = load<float>(source, i); break;
      case DType::bf16: target[i] = from_bf16(load<std::uint16_t>(source, i)); break;
      case DType::fp16: target[i] = from_fp16(load<std::uint16_t>(source, i)); break;
    }
  }
}

void zero_remainders(std::span<const std::uint16_t> values, std::span<std::int16_t> remainders) {
  unsigned any = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    any |= static_cast<unsigned>((values[i] & 0x7fffU) == 0) &
           static_cast<unsigned>(remainders[i] < 0);
  }
  if (any == 0) return;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if ((values[i] & 0x7fffU) == 0) remainders[i] = std::max<std::int16_t>(remainders[i], 0);
  }
}

bool follow_values(cpu_adam::Isa isa, DType dtype, std::span<const std::byte> values,
                   std::span<float> masters) {
  std::array<std::byte, kPiece * sizeof(float)> buffer;
  bool any = false;
  for (std::size_t first = 0; first < masters.size(); first += kPiece) {
    const auto piece = masters.subspan(first, std::min(kPiece, masters.size() - first));
    const auto rounded = std::span(buffer).first(piece.size() * size_of(dtype));
    const auto written = values.subspan(first * size_of(dtype), rounded.size());
    cpu_adam::cast_parameters(isa, dtype, piece.data(), rounded.data(), piece.size());
    if (std::memcmp(written.data(), rounded.data(), rounded.size()) == 0) continue;
    take_values(dtype, written, rounded, piece);
    any = true;
  }
  return any;
}

void update_from_values(const cpu_adam::Kernel& kernel,
                        std::span<const cpu_adam::ParameterGroup> groups,
                        const cpu_adam::UpdateRange& range) {
  for (std::size_t first = 0; first < range.count; first += kCachedParameters) {
    const std::size_t count = std::min(kCachedParameters, range.count - first);
    const cpu_adam::UpdateRange part = cpu_adam::slice(kernel, range, first, count);
    if (kernel.format == StateFormat::fp32) {
      follow_values(kernel.isa, kernel.parameter_dtype,
                    {static_cast<const std::byte*>(part.parameters_out),
                     count * size_of(kernel.parameter_dtype)},
                    {static_cast<float*>(part.master_out), count});
    } else {
      zero_remainders({static_cast<const std::uint16_t*>(part.parameters_out), count},
                      {static_cast<std::int16_t*>(part.master_out), count});
    }
    cpu_adam::update(kernel, groups, part);
  }
}

}  // namespace spillway::engine
