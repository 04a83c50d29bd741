#include "tests/support/cuda_emulation/library_call.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tests/support/cuda_emulation/device.hpp"
#include "tests/support/cuda_emulation/grid.hpp"

namespace cuda_emulation {
namespace {

/// What a library is seen to write at both ends of its workspace: all of it would take too long.
constexpr std::size_t kScribbled = std::size_t{64} << 10;

float from_half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const auto fraction = static_cast<float>(bits & 1023);
  float value = 0;
  if (exponent == 31) {
    value = fraction == 0 ? INFINITY : NAN;
  } else {
    value =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024.0F, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

std::uint16_t to_half(float value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const float size = std::fabs(value);
  if (std::isnan(size)) return static_cast<std::uint16_t>(sign | 0x7e00);
  if (size >= 65520.0F) return static_cast<std::uint16_t>(sign | 0x7c00);
  // Units of the last place; nearbyint rounds ties to even.
  const int exponent = size < std::ldexp(1.0F, -14) ? -14 : std::ilogb(size);
  const auto units = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  return static_cast<std::uint16_t>(sign |
                                    (static_cast<std::uint32_t>(exponent + 14) * 1024 + units));
}

std::uint16_t to_bfloat(float value) {
  if (std::isnan(value)) return 0x7fc0;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void scribble(const Workspace& workspace) {
  const std::size_t bytes = std::min(workspace.size, kScribbled);
  std::memset(workspace.address, 0xff, bytes);
  std::memset(static_cast<std::byte*>(workspace.address) + (workspace.size - bytes), 0xff, bytes);
}

}  // namespace

std::size_t element_bytes(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

float load(cudaDataType_t type, const void* base, std::uint64_t index) {
  if (type == CUDA_R_32F) return static_cast<const float*>(base)[index];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(base)[index];
  return type == CUDA_R_16F ? from_half(bits) : std::bit_cast<float>(std::uint32_t{bits} << 16);
}

void store(cudaDataType_t type, void* base, std::uint64_t index, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(base)[index] = value;
  } else {
    static_cast<std::uint16_t*>(base)[index] =
        type == CUDA_R_16F ? to_half(value) : to_bfloat(value);
  }
}

void enqueue_call(cudaStream_t stream, const Workspace& workspace, std::function<void()> work) {
  const Device::Lock device;
  if (!device->has(stream) || stream->device != current_device()) {
    fault("a library is called on a stream that the current device has not");
  }
  device->enqueue(*stream, {.work = [workspace, work = std::move(work)] {
    if (workspace.size > 0) scribble(workspace);
    work();
    if (workspace.size > 0) scribble(workspace);
    ++Device::Lock()->statistics.products;
  }});
}

void expect_operand(const char* what, const void* address, std::size_t size,
                    std::size_t alignment) {
  if (Device::Lock()->memory.device_of(address, size) != current_device()) {
    fault("%s: %zu bytes at %p lie in no allocation of the current device", what, size, address);
  }
  if (reinterpret_cast<std::uintptr_t>(address) % alignment != 0) {
    fault("%s at %p is not aligned to the %zu bytes that were promised", what, address, alignment);
  }
}

}  // namespace cuda_emulation
