// The kernels compiled for AVX512. Empty on other processors.
#ifdef __x86_64__
#include "runtime/base/simd/avx512.hpp"
#include "runtime/base/simd/processor.hpp"
#include "runtime/model/host/kernels.hpp"

#define SPILLWAY_SIMD avx512
SPILLWAY_TARGET_BEGIN(SPILLWAY_AVX512)
#include "runtime/model/host/kernel_table.hpp"
SPILLWAY_TARGET_END

namespace spillway::model::host {

const Kernels kAvx512Kernels = {"avx512", simd::has_avx512, avx512::make_table<float>(),
                                avx512::make_table<Bf16>(), avx512::make_table<Fp16>()};

}  // namespace spillway::model::host
#endif
