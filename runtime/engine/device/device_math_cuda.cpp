#include "cpu_adam/cuda/device_update.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/device/device_math.hpp"

namespace spillway::engine {
namespace {

namespace device = cpu_adam::cuda;

class CudaDeviceMath final : public DeviceMath {
 public:
  explicit CudaDeviceMath(void* stream) : stream_(stream) {}

  void finish_gradient(const FinishedGradient& g) override {
    float* sums = g.sums.address();
    const std::size_t padding = g.sums.size() - g.parameters;
    device::fill_zero(sums + g.parameters, padding * sizeof(float), stream_);
    if (!g.tied.empty()) {
      device::accumulate(DType::fp32, g.tied.address(), sums, g.tied.size(),
                         /*first=*/false, stream_);
    }
    if (g.dtype != DType::fp32) {
      device::round_gradient(g.dtype, sums, g.rounded.address(), g.sums.size(), stream_);
    }
    if (g.home.empty()) return;
    if (g.sums_rounds) {
      auto* home = reinterpret_cast<float*>(g.home.address());
      device::accumulate(g.dtype, g.rounded.address(), home, g.sums.size(), g.first_round, stream_);
    } else {
      device::copy(g.home.address(), g.rounded.address(), g.home.size(), stream_);
    }
  }

  void copy(offload::DeviceSpan<std::byte> target,
            offload::DeviceSpan<const std::byte> source) override {
    SPILLWAY_ASSERT(target.size_bytes() == source.size_bytes());
    device::copy(target.address(), source.address(), source.size_bytes(), stream_);
  }

  void sum_squares(offload::DeviceSpan<const std::byte> gradient, DType dtype,
                   offload::DeviceSpan<double> leaves) override {
    const std::size_t count = gradient.size() / size_of(dtype);
    SPILLWAY_ASSERT(leaves.size() == round_up(count, kLeafParameters) / kLeafParameters);
    device::sum_squares(dtype, gradient.address(), count, leaves.address(), stream_);
  }

  void update(const UpdateTypes& types, std::span<const cpu_adam::ParameterGroup> groups,
              const cpu_adam::UpdateRange& range) override {
    device::update(
        {.format = types.format, .gradient = types.gradient, .parameter = types.parameter}, groups,
        range, stream_);
  }

 private:
  void* stream_;
};

}  // namespace

std::unique_ptr<DeviceMath> make_cuda_device_math(offload::Stream& compute) {
  check(compute.native() != nullptr, ErrorCode::invalid_argument,
        "arithmetic on a CUDA device needs a stream of the CUDA backend; this one has no native "
        "stream");
  return std::make_unique<CudaDeviceMath>(compute.native());
}

}  // namespace spillway::engine
