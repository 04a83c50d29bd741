// 16-bit storage types of activations, as the kernels see them. Arithmetic is fp32.
#pragma once

#include <cstdint>

namespace spillway::model::host {

struct Bf16 {
  std::uint16_t bits;
};
struct Fp16 {
  std::uint16_t bits;
};
static_assert(sizeof(Bf16) == 2 && sizeof(Fp16) == 2);

}  // namespace spillway::model::host
