// The CPU optimizer alone: AdamW with fp32 masters, bf16 gradients in and bf16 parameters out, in
// one pass over memory. It finds the parameters that a quadratic loss has its minimum at.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "cpu_adam/adam.hpp"

int main() {
  using namespace spillway;
  constexpr std::size_t kCount = 100'000;
  constexpr int kSteps = 300;
  const auto target = [](std::size_t i) { return std::sin(static_cast<float>(i)); };

  // Masters and moments in fp32; 16-bit arrays as a model has them. They start at zero.
  std::vector<float> master(kCount), m(kCount), v(kCount);
  std::vector<std::uint16_t> gradient(kCount), parameters(kCount);

  // The fastest kernel of this processor. All of them give the same bits.
  const cpu_adam::Kernel& kernel =
      cpu_adam::find_kernel(cpu_adam::best_isa(), DType::bf16, DType::bf16);
  for (int step = 1; step <= kSteps; ++step) {
    for (std::size_t i = 0; i < kCount; ++i) {
      gradient[i] = to_bf16(from_bf16(parameters[i]) - target(i));
    }
    const cpu_adam::UpdateScalars scalars = cpu_adam::make_scalars(
        {.lr = 0.02, .weight_decay = 0}, static_cast<std::uint64_t>(step), 1.0);
    // Ranges do not touch each other: threads may each take a part of the arrays.
    kernel.update(scalars, {.gradient = gradient.data(),
                            .master_in = master.data(),
                            .m_in = m.data(),
                            .v_in = v.data(),
                            .master_out = master.data(),
                            .m_out = m.data(),
                            .v_out = v.data(),
                            .parameters_out = parameters.data(),
                            .count = kCount});
  }
  double distance = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    distance = std::fmax(distance, std::fabs(double{from_bf16(parameters[i])} - target(i)));
  }
  std::printf("%s\n", distance < 0.01 ? "every parameter is within 0.01 of the minimum" : "lost");
}
