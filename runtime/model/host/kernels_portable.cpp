// The kernels without vector instructions, and the choice among all of them.
#include <fmt/format.h>

#include <array>

#include "runtime/base/error.hpp"
#include "runtime/base/simd/portable.hpp"
#include "runtime/model/host/kernels.hpp"

#define SPILLWAY_SIMD portable
#include "runtime/model/host/kernel_table.hpp"

namespace spillway::model::host {

const Kernels kPortableKernels = {"portable", [] { return true; }, portable::make_table<float>(),
                                  portable::make_table<Bf16>(), portable::make_table<Fp16>()};

std::span<const Kernels* const> all_kernels() {
#ifdef __x86_64__
  static constexpr std::array<const Kernels*, 3> kAll = {&kAvx512Kernels, &kAvx2Kernels,
                                                         &kPortableKernels};
#else
  static constexpr std::array<const Kernels*, 1> kAll = {&kPortableKernels};
#endif
  return kAll;
}

const Kernels& choose_kernels(std::string_view name) {
  for (const Kernels* kernels : all_kernels()) {
    if (!name.empty() && name != kernels->name) continue;
    if (kernels->supported()) return *kernels;
    check(name.empty(), ErrorCode::not_supported,
          fmt::format("this processor cannot run the {} kernels; choose portable", name));
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("unknown kernels \"{}\"; use avx512, avx2 or portable", name));
}

}  // namespace spillway::model::host
