#include "cpu_adam/traffic.hpp"

#include "cpu_adam/detail/traffic_set.hpp"
#include "runtime/base/error.hpp"

namespace spillway::cpu_adam {
namespace {

const detail::TrafficSet& traffic_of(Isa isa) {
  switch (isa) {
    case Isa::scalar:  // its loads and stores may as well be wider
    case Isa::portable: return detail::kPortableTraffic;
#if defined(__x86_64__)
    case Isa::avx2: return detail::kAvx2Traffic;
    case Isa::avx512: return detail::kAvx512Traffic;
#else
    case Isa::avx2:
    case Isa::avx512: break;
#endif
  }
  SPILLWAY_ASSERT(false && "an Isa outside this build");
}

}  // namespace

double bytes_per_parameter(StateFormat format, DType gradient, DType parameter) {
  const std::size_t state = master_size(format) + 2 * moment_size(format);
  const std::size_t parameters = size_of(parameter) * (needs_parameters(format) ? 2 : 1);
  const double scales =
      format == StateFormat::int8 ? 2.0 * 2 * sizeof(float) / kQuantizationBlock : 0;
  return static_cast<double>(size_of(gradient) + 2 * state + parameters) + scales;
}

void move_traffic(const Kernel& kernel, const UpdateRange& range) {
  for (std::size_t row = 0; row < detail::kFormatRowCount; ++row) {
    const detail::FormatRow& have = detail::kFormatRows[row];
    if (have.format == kernel.format && have.parameter == kernel.parameter_dtype) {
      traffic_of(kernel.isa).move[row][detail::index_of(kernel.gradient_dtype)](range);
      return;
    }
  }
  SPILLWAY_ASSERT(false && "a kernel outside the table");
}

}  // namespace spillway::cpu_adam
