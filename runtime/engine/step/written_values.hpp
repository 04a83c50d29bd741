// Values of parameters that another framework may write: their masters follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu_adam/update.hpp"
#include "runtime/base/dtype.hpp"

namespace spillway::engine {

/// Sets target[i] to source[i], exactly; source: [target.size()] of `dtype`.
void widen(DType dtype, std::span<const std::byte> source, std::span<float> target);

/// Sets negative remainders of zeros to zero. No master leaves a negative remainder with a zero,
/// and the two joined are not a number. `values`: bf16.
void zero_remainders(std::span<const std::uint16_t> values, std::span<std::int16_t> remainders);

/// Sets each master that does not round to its value to that value. Returns whether any did not.
/// `values`: [masters.size()] of `dtype`.
bool follow_values(cpu_adam::Isa isa, DType dtype, std::span<const std::byte> values,
                   std::span<float> masters);

/// Performs `cpu_adam::update` in place, from the values as they are by now. In the formats shorter
/// than fp32 a value is the upper half of its master, so masters follow but for zeros
/// (`zero_remainders`).
void update_from_values(const cpu_adam::Kernel& kernel,
                        std::span<const cpu_adam::ParameterGroup> groups,
                        const cpu_adam::UpdateRange& range);

}  // namespace spillway::engine
