#include "cpu_adam/cuda/device_update.hpp"

#include "cpu_adam/cuda/detail/launches.hpp"
#include "cpu_adam/cuda/detail/update_jobs.hpp"

namespace spillway::cpu_adam::cuda {

void update(const RangeTypes& types, std::span<const ParameterGroup> groups,
            const UpdateRange& range, void* stream) {
  detail::check_update(types, range);
  if (range.count == 0) return;
  if (types.format == StateFormat::int8) {
    const detail::QuantizedJob job = detail::make_quantized_job(types, groups, range);
    return detail::launch_quantized(job, types.gradient, stream);
  }
  detail::for_each_job(types, groups, range, [&](const detail::UpdateJob& job) {
    detail::launch_update(job, types.format, types.gradient, stream);
  });
}

}  // namespace spillway::cpu_adam::cuda
