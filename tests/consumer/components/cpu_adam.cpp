// One step of AdamW on arrays of one's own.
#include <cstdio>
#include <vector>

#include "cpu_adam/adam.hpp"

int main() {
  using namespace spillway;
  constexpr std::size_t kCount = 1000;
  std::vector<float> master(kCount, 1.0F), m(kCount), v(kCount), gradient(kCount, 0.5F);
  const cpu_adam::Kernel& kernel =
      cpu_adam::find_kernel(cpu_adam::best_isa(), DType::fp32, DType::fp32);
  kernel.update(cpu_adam::make_scalars({.lr = 0.25, .eps = 0}, 1, 1.0),
                {.gradient = gradient.data(),
                 .master_in = master.data(),
                 .m_in = m.data(),
                 .v_in = v.data(),
                 .master_out = master.data(),
                 .m_out = m.data(),
                 .v_out = v.data(),
                 .count = kCount});
  std::printf("%.3f\n", static_cast<double>(master.back()));
}
