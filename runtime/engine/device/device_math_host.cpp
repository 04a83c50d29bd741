#include <algorithm>

#include "cpu_adam/gradient_norm.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/device/device_math.hpp"

namespace spillway::engine {
namespace {

class HostDeviceMath final : public DeviceMath {
 public:
  explicit HostDeviceMath(cpu_adam::Isa isa) : isa_(isa) {}

  void finish_gradient(const FinishedGradient& g) override {
    float* sums = g.sums.address();
    std::fill(sums + g.parameters, sums + g.sums.size(), 0.0F);
    if (!g.tied.empty()) {
      cpu_adam::accumulate(isa_, DType::fp32, g.tied.address(), {sums, g.tied.size()},
                           /*first=*/false);
    }
    if (g.dtype != DType::fp32) {
      cpu_adam::round_gradient(isa_, g.dtype, sums, g.rounded.address(), g.sums.size());
    }
    if (g.home.empty()) return;
    if (g.sums_rounds) {
      auto* home = reinterpret_cast<float*>(g.home.address());
      cpu_adam::accumulate(isa_, g.dtype, g.rounded.address(), {home, g.sums.size()},
                           g.first_round);
    } else {
      std::copy_n(g.rounded.address(), g.home.size(), g.home.address());
    }
  }

  void copy(offload::DeviceSpan<std::byte> target,
            offload::DeviceSpan<const std::byte> source) override {
    SPILLWAY_ASSERT(target.size_bytes() == source.size_bytes());
    std::copy_n(source.address(), source.size_bytes(), target.address());
  }

  void sum_squares(offload::DeviceSpan<const std::byte> gradient, DType dtype,
                   offload::DeviceSpan<double> leaves) override {
    cpu_adam::sum_squares(isa_, dtype, gradient.address(), gradient.size() / size_of(dtype),
                          {leaves.address(), leaves.size()});
  }

  void update(const UpdateTypes& types, std::span<const cpu_adam::ParameterGroup> groups,
              const cpu_adam::UpdateRange& range) override {
    cpu_adam::update(cpu_adam::find_kernel(isa_, types.gradient, types.parameter, types.format),
                     groups, range);
  }

 private:
  cpu_adam::Isa isa_;
};

}  // namespace

std::unique_ptr<DeviceMath> make_host_device_math(cpu_adam::Isa isa) {
  return std::make_unique<HostDeviceMath>(isa);
}

}  // namespace spillway::engine
