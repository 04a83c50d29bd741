// The optimizer's arithmetic on memory that the device owns: rounding of accumulated gradients,
// their norm, and the update of state that lives on the device. Runs in a stream's order.
#pragma once

#include <memory>
#include <span>

#include "cpu_adam/update.hpp"
#include "offload/device_backend.hpp"
#include "offload/device_span.hpp"
#include "runtime/base/dtype.hpp"

namespace spillway::engine {

/// A block's gradient of one round: fp32 sums in, the waiting gradient out.
struct FinishedGradient {
  offload::DeviceSpan<float> sums;         ///< [padded]; the padding is cleared
  std::size_t parameters = 0;              ///< without padding
  offload::DeviceSpan<const float> tied;   ///< second use of the first elements, or empty
  offload::DeviceSpan<std::byte> rounded;  ///< [padded] of dtype; may be `sums` itself
  DType dtype = DType::fp32;
  offload::DeviceSpan<std::byte> home;  ///< device home, or empty
  bool sums_rounds = false;             ///< home is fp32 and adds up the rounds
  bool first_round = true;
};

/// Types of the arrays of an update.
struct UpdateTypes {
  StateFormat format = StateFormat::fp32;
  DType gradient = DType::fp32;
  DType parameter = DType::fp32;
};

/// One method for each op, called inside `Stream::submit`.
class DeviceMath {
 public:
  virtual ~DeviceMath() = default;
  virtual void finish_gradient(const FinishedGradient& gradient) = 0;
  /// Copies within the device; the two are of one size and overlap nowhere.
  virtual void copy(offload::DeviceSpan<std::byte> target,
                    offload::DeviceSpan<const std::byte> source) = 0;
  virtual void sum_squares(offload::DeviceSpan<const std::byte> gradient, DType dtype,
                           offload::DeviceSpan<double> leaves) = 0;
  /// Performs cpu_adam::update; pointers of `range` are device addresses.
  virtual void update(const UpdateTypes& types, std::span<const cpu_adam::ParameterGroup> groups,
                      const cpu_adam::UpdateRange& range) = 0;
};

/// Makes the arithmetic of the host backend, whose device memory the CPU can reach.
[[nodiscard]] std::unique_ptr<DeviceMath> make_host_device_math(cpu_adam::Isa isa);
/// Makes that of a CUDA device's memory: its kernels run on `compute`, a stream of that backend
/// which outlives this, whichever task starts them. The bits are those of the host, NaN payloads
/// and signs aside. Throws `Error{invalid_argument}` for a stream of another backend.
[[nodiscard]] std::unique_ptr<DeviceMath> make_cuda_device_math(offload::Stream& compute);

}  // namespace spillway::engine
