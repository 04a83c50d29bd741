// The launches that an update of a range takes, decided on the host. For any thread.
#pragma once

#include <span>

#include "cpu_adam/cuda/detail/quantized_body.hpp"
#include "cpu_adam/cuda/detail/update_body.hpp"
#include "cpu_adam/cuda/device_update.hpp"
#include "cpu_adam/detail/kernel_set.hpp"

namespace spillway::cpu_adam::cuda::detail {

/// Throws what cpu_adam::cuda::update throws.
void check_update(const RangeTypes& types, const UpdateRange& range);

/// Returns the launch for `part`, a range of one group whose indices have one upper half.
[[nodiscard]] UpdateJob make_job(const RangeTypes& types, const UpdateScalars& scalars,
                                 const UpdateRange& part);

/// Returns the launch for a whole range of format int8, not empty.
[[nodiscard]] QuantizedJob make_quantized_job(const RangeTypes& types,
                                              std::span<const ParameterGroup> groups,
                                              const UpdateRange& range);

/// Calls body(job) for each launch of a format other than int8, in order.
template <class Body>
void for_each_job(const RangeTypes& types, std::span<const ParameterGroup> groups,
                  const UpdateRange& range, const Body& body) {
  constexpr std::uint64_t kKeyed = std::uint64_t{1} << 32;
  std::size_t first = 0;
  for (const ParameterGroup& group : groups) {
    SPILLWAY_ASSERT(!group.skips);
    while (first < range.count && range.index + first < group.end) {
      const std::uint64_t index = range.index + first;
      const std::uint64_t to_group = group.end - index;
      const std::uint64_t to_key = kKeyed - index % kKeyed;
      const std::size_t count = std::min({std::uint64_t{range.count - first}, to_group, to_key});
      body(make_job(types, group.scalars,
                    cpu_adam::detail::slice({types.format, types.parameter}, types.gradient, range,
                                            first, count)));
      first += count;
    }
  }
  SPILLWAY_ASSERT(first == range.count && "parameters that belong to no group");
}

}  // namespace spillway::cpu_adam::cuda::detail
