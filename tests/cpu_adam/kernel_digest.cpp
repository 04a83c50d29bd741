// Prints a digest of what every kernel of this build that this CPU has gives: one line each, "name
// digest". For processors that this machine is not, under emulation (emulated_cpus_test.py).
// usage: kernel_digest [ISA]   ISA alone; exit 3 if this CPU lacks it.
#include <bit>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "cpu_adam/adam.hpp"
#include "cpu_adam/gradient_norm.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/random.hpp"

namespace spillway::cpu_adam::test {
namespace {

constexpr std::size_t kCount = 4096 + 300;
constexpr int kExitNotSupported = 3;

/// FNV-1a.
std::uint64_t digest_of(const std::vector<std::byte>& bytes, std::uint64_t hash) {
  for (const std::byte byte : bytes) {
    hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3ULL;
  }
  return hash;
}

/// Signed, over 10 octaves from `largest` down; no function of a C library decides a bit. Nothing
/// becomes subnormal in fp16: QEMU 7.2 flushes such numbers in F16C's conversions, processors do
/// not.
float random_value(std::uint64_t stream, std::uint64_t index, float largest) {
  const RandomBlock block = random_block(7, {.stream = stream, .index = index});
  const float mantissa = 1 + static_cast<float>(block[0] >> 9) * 0x1p-23F;
  float value = largest * mantissa;
  for (std::uint32_t k = block[1] % 10; k > 0; --k) value /= 2;
  return block[2] % 2 != 0 ? -value : value;
}

std::vector<float> random_values(std::uint64_t stream, float largest) {
  std::vector<float> values(kCount);
  for (std::size_t i = 0; i < kCount; ++i) values[i] = random_value(stream, i, largest);
  return values;
}

/// Three steps of every optimizer from the same state, and the norm of the gradient.
std::uint64_t digest_kernel(const Kernel& kernel) {
  const std::vector<float> g = random_values(0, 1);
  std::vector<std::byte> gradient(kCount * size_of(kernel.gradient_dtype));
  round_gradient(Isa::scalar, kernel.gradient_dtype, g.data(), gradient.data(), kCount);
  std::vector<float> v = random_values(3, 0.5F);
  for (float& x : v) x = x < 0 ? -x : x;
  const StateLayout layout = make_layout(kernel.format, kCount);
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const Optimizer optimizer :
       {Optimizer::adam, Optimizer::adagrad, Optimizer::lion, Optimizer::sgd}) {
    std::vector<std::byte> state(layout.bytes);
    std::vector<std::byte> parameters(kCount * size_of(kernel.parameter_dtype) +
                                      (needs_parameters(kernel.format) ? 0 : 2 * kCount));
    pack_state(layout, {.master = random_values(1, 4), .m = random_values(2, 1), .v = v},
               state.data(), parameters.data());
    for (std::uint64_t t = 1; t <= 3; ++t) {
      const UpdateScalars scalars =
          make_scalars({.lr = 1e-4, .weight_decay = 0.1, .optimizer = optimizer}, t, 0.5);
      kernel.update(scalars, tile_range(layout, state.data(), state.data(), gradient.data(),
                                        parameters.data(), parameters.data()));
    }
    hash = digest_of(parameters, digest_of(state, hash));
  }
  std::vector<double> leaves(2);
  sum_squares(kernel.isa, kernel.gradient_dtype, gradient.data(), kCount, leaves);
  std::vector<std::byte> bytes(16);
  std::memcpy(bytes.data(), leaves.data(), 16);
  return digest_of(bytes, hash);
}

void print_digests(const char* only) {
  if (only != nullptr) {
    static_cast<void>(find_kernel(parse_isa(only), DType::bf16, DType::bf16));  // or throws
  }
  for (const Kernel& kernel : kernels()) {
    if (!supported(kernel.isa) || (only != nullptr && name_of(kernel.isa) != only)) continue;
    std::printf("%s %016llx\n", std::string(kernel.name).c_str(),
                static_cast<unsigned long long>(digest_kernel(kernel)));
  }
}

}  // namespace
}  // namespace spillway::cpu_adam::test

int main(int argc, char** argv) {
  using namespace spillway;
  try {
    cpu_adam::test::print_digests(argc > 1 ? argv[1] : nullptr);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "kernel_digest: %s\n", error.what());
    return error.code() == ErrorCode::not_supported ? cpu_adam::test::kExitNotSupported : 1;
  }
}
