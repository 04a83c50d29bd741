// Runs optimizer steps for a script that compares them with another implementation.
// stdin, native byte order: uint32 count, steps, l2 (0: AdamW); double lr, beta1, beta2, eps,
// weight_decay; fp32 master[count]; then fp32 gradient[count] for each step.
// stdout: fp32 master[count], m[count], v[count].
#include <cstdint>
#include <cstdio>
#include <vector>

#include "cpu_adam/adam.hpp"
#include "runtime/base/error.hpp"

namespace spillway::cpu_adam::test {
namespace {

template <class T>
void read_values(T* values, std::size_t count) {
  check(std::fread(values, sizeof(T), count, stdin) == count, ErrorCode::invalid_argument,
        "standard input ended early");
}

void write_values(const std::vector<float>& values) {
  check(std::fwrite(values.data(), sizeof(float), values.size(), stdout) == values.size(),
        ErrorCode::io_error, "standard output is closed");
}

}  // namespace

void run() {
  std::uint32_t sizes[3];
  double numbers[5];
  read_values(sizes, 3);
  read_values(numbers, 5);
  const AdamOptions options{.lr = numbers[0],
                            .beta1 = numbers[1],
                            .beta2 = numbers[2],
                            .eps = numbers[3],
                            .weight_decay = numbers[4],
                            .decay_mode = sizes[2] != 0 ? DecayMode::l2 : DecayMode::decoupled};
  std::vector<float> master(sizes[0]), m(sizes[0]), v(sizes[0]), gradient(sizes[0]);
  read_values(master.data(), master.size());
  const Kernel& kernel = find_kernel(best_isa(), DType::fp32, DType::fp32);
  for (std::uint32_t t = 1; t <= sizes[1]; ++t) {
    read_values(gradient.data(), gradient.size());
    kernel.update(make_scalars(options, t, 1), {.gradient = gradient.data(),
                                                .master_in = master.data(),
                                                .m_in = m.data(),
                                                .v_in = v.data(),
                                                .master_out = master.data(),
                                                .m_out = m.data(),
                                                .v_out = v.data(),
                                                .count = master.size()});
  }
  write_values(master);
  write_values(m);
  write_values(v);
}

}  // namespace spillway::cpu_adam::test

int main() {
  try {
    spillway::cpu_adam::test::run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "adam_peer: %s\n", error.what());
    return 1;
  }
}
