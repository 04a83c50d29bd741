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

/// 2 * kWidth neighbours: those at even places and those at odd ones. Elements of 16 bits are the
/// halves of 32-bit lanes, so that they come apart and together again without a permutation.
struct Pair {
  Float even, odd;
};

/// Returns bf16 widened: the floats of which `x` holds the upper halves.
inline Pair pair_from_bf16(Int x) {
  return {from_bits(shift_left<16>(x)), from_bits(and_int(x, set_int(0xffff0000U)))};
}
inline Int pack_upper(Int even, Int odd) { return join_halves(shift_right<16>(even), odd); }
inline Int pack_lower(Int even, Int odd) { return join_halves(even, shift_left<16>(odd)); }

/// Returns the bf16 of x after an increment of its bits; a NaN of x is quiet and stays what it is.
inline Int round_pair(const Pair& x, Int even, Int odd) {
  return pack_upper(add_to_number(x.even, even), add_to_number(x.odd, odd));
}
