// What follows from the other functions of an instruction set. Part of avx2.hpp, avx512.hpp and
// portable.hpp, inside their namespaces.

inline Float abs(Float a) { return from_bits(and_int(bits(a), set_int(0x7fffffffU))); }

/// Returns 2^n for integral n in [-126, 127]; anything for a NaN.
inline Float power_of_two(Float n) {
  return from_bits(shift_left<23>(add_int(to_int(n), set_int(127))));
}

/// Returns bfloat16 to nearest even: the rule for gradients and activations.
inline Half to_bf16(Float x) {
  const Int odd = and_int(shift_right<16>(bits(x)), set_int(1));
  return round_bf16(x, add_int(odd, set_int(0x7fff)));
}

/// Returns bfloat16 to nearest with ties away from zero: the rule for parameters.
inline Half parameter_to_bf16(Float x) { return round_bf16(x, set_int(0x8000)); }
