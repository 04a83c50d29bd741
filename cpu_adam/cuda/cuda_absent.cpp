// The device's update in a build that has none.
#include "cpu_adam/cuda/device_update.hpp"
#include "runtime/base/error.hpp"

namespace spillway::cpu_adam::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::not_supported,
              "this build has no CUDA backend: build with SPILLWAY_CUDA=ON, or update on the CPU");
}

}  // namespace

void update(const RangeTypes&, std::span<const ParameterGroup>, const UpdateRange&, void*) {
  refuse();
}
void sum_squares(DType, const void*, std::size_t, double*, void*) { refuse(); }
void accumulate(DType, const void*, float*, std::size_t, bool, void*) { refuse(); }
void round_gradient(DType, const float*, void*, std::size_t, void*) { refuse(); }
void copy(void*, const void*, std::size_t, void*) { refuse(); }
void fill_zero(void*, std::size_t, void*) { refuse(); }

}  // namespace spillway::cpu_adam::cuda
