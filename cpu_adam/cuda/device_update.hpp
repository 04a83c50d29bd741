// The update, and what goes before it, on memory of a CUDA device: the arithmetic of
// cpu_adam/element.hpp and cpu_adam/codec.hpp, so the bits of the CPU's kernels (NaN payloads and
// signs aside). Each function launches on `stream`, a cudaStream_t that is not the default stream,
// of the current device, and returns at once: pointers are device addresses, valid until the stream
// has passed. Nothing is allocated, nothing waits. Any thread may call anything here.
//
// Errors: `Error{device_error}` if a launch is refused, `Error{not_supported}` in a build without
// CUDA. Every array is aligned to its own element at least; what is aligned to 16 bytes moves in
// vectors.
#pragma once

#include <cstddef>
#include <span>

#include "cpu_adam/update.hpp"

namespace spillway::cpu_adam::cuda {

/// Element types of the arrays of a range. Only format fp32 goes with parameters other than bf16.
struct RangeTypes {
  StateFormat format = StateFormat::fp32;
  DType gradient = DType::fp32;
  DType parameter = DType::fp32;
};

/// Bounds the groups of one range in format int8; other formats may have any number.
inline constexpr std::size_t kMaxQuantizedGroups = 8;

/// Runs cpu_adam::update on the device. Ignores the prefetch distance. `groups` may go when the
/// call returns. Throws `Error{invalid_argument}` for types that do not go together, an array that
/// is not aligned to its element, and too many groups.
void update(const RangeTypes& types, std::span<const ParameterGroup> groups,
            const UpdateRange& range, void* stream);

/// Runs cpu_adam::sum_squares on the device. leaves: [ceil(count / kLeafParameters)].
void sum_squares(DType dtype, const void* gradient, std::size_t count, double* leaves,
                 void* stream);

/// Runs cpu_adam::accumulate on the device. source: [count] of `dtype`; target: [count].
void accumulate(DType dtype, const void* source, float* target, std::size_t count, bool first,
                void* stream);

/// Runs cpu_adam::round_gradient on the device. target: [count] of `dtype`; overlaps `source`
/// nowhere.
void round_gradient(DType dtype, const float* source, void* target, std::size_t count,
                    void* stream);

/// Copies from device to device; the two overlap nowhere.
void copy(void* target, const void* source, std::size_t bytes, void* stream);
void fill_zero(void* target, std::size_t bytes, void* stream);

}  // namespace spillway::cpu_adam::cuda
