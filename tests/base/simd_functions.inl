// The list of simd_functions.hpp for the instruction set SPILLWAY_SIMD. Included once for each,
// where functions are compiled for it.

namespace spillway::simd::test::SPILLWAY_SIMD {
namespace {

namespace v = spillway::simd::SPILLWAY_SIMD;

inline v::Float a(const Operands& o) { return v::load(o.a); }
inline v::Float b(const Operands& o) { return v::load(o.b); }
inline v::Float c(const Operands& o) { return v::load(o.c); }
inline v::Int int_a(const Operands& o) { return v::bits(a(o)); }
inline v::Int int_b(const Operands& o) { return v::bits(b(o)); }
inline void put(const Operands& o, v::Float x) { v::store(o.out, x); }
inline void put_int(const Operands& o, v::Int x) { put(o, v::from_bits(x)); }
inline v::Int lanes_as_int(const float* lanes) { return v::bits(v::load(lanes)); }
inline void lanes_from_int(float* lanes, v::Int x) { v::store(lanes, v::from_bits(x)); }

constexpr LaneFunction kLanes[] = {
    {"sqrt", [](const Operands& o) { put(o, v::sqrt(a(o))); }},
    {"fma", [](const Operands& o) { put(o, v::fma(a(o), b(o), c(o))); }},
    {"fnma", [](const Operands& o) { put(o, v::fnma(a(o), b(o), c(o))); }},
    {"max", [](const Operands& o) { put(o, v::max(a(o), b(o))); }},
    {"min", [](const Operands& o) { put(o, v::min(a(o), b(o))); }},
    {"round", [](const Operands& o) { put(o, v::round(a(o))); }},
    {"select_negative", [](const Operands& o) { put(o, v::select_negative(a(o), b(o), c(o))); }},
    {"sign", [](const Operands& o) { put(o, v::sign(a(o))); }},
    {"with_sign_of", [](const Operands& o) { put(o, v::with_sign_of(a(o), b(o))); }},
    {"abs", [](const Operands& o) { put(o, v::abs(a(o))); }},
    {"power_of_two", [](const Operands& o) { put(o, v::power_of_two(a(o))); }},
    {"bf16", [](const Operands& o) { put(o, v::from_bf16(v::to_bf16(a(o)))); }},
    {"parameter_bf16", [](const Operands& o) { put(o, v::from_bf16(v::parameter_to_bf16(a(o)))); }},
    {"fp16", [](const Operands& o) { put(o, v::from_fp16(v::to_fp16(a(o)))); }},
    {"from_bf16", [](const Operands& o) { put(o, v::from_bf16(v::low_half(int_a(o)))); }},
    {"from_fp16", [](const Operands& o) { put(o, v::from_fp16(v::low_half(int_a(o)))); }},
    {"to_float", [](const Operands& o) { put(o, v::to_float(int_a(o))); }},
    {"to_int", [](const Operands& o) { put_int(o, v::to_int(a(o))); }},
    {"add_int", [](const Operands& o) { put_int(o, v::add_int(int_a(o), int_b(o))); }},
    {"mul_int", [](const Operands& o) { put_int(o, v::mul_int(int_a(o), int_b(o))); }},
    {"and_int", [](const Operands& o) { put_int(o, v::and_int(int_a(o), int_b(o))); }},
    {"or_int", [](const Operands& o) { put_int(o, v::or_int(int_a(o), int_b(o))); }},
    {"xor_int", [](const Operands& o) { put_int(o, v::xor_int(int_a(o), int_b(o))); }},
    {"max_unsigned", [](const Operands& o) { put_int(o, v::max_unsigned(int_a(o), int_b(o))); }},
    {"shift_right", [](const Operands& o) { put_int(o, v::shift_right<5>(int_a(o))); }},
    {"shift_left", [](const Operands& o) { put_int(o, v::shift_left<5>(int_a(o))); }},
    {"one_more_where_at_least",
     [](const Operands& o) { put_int(o, v::one_more_where_at_least(int_a(o), b(o), c(o))); }},
    {"half_of_int", [](const Operands& o) { put_int(o, v::widen_signed(v::low_half(int_a(o)))); }},
    {"shift_right_signed",
     [](const Operands& o) { put_int(o, v::shift_right_signed<5>(int_a(o))); }},
    {"join_halves", [](const Operands& o) { put_int(o, v::join_halves(int_a(o), int_b(o))); }},
    {"pack_upper", [](const Operands& o) { put_int(o, v::pack_upper(int_a(o), int_b(o))); }},
    {"pack_lower", [](const Operands& o) { put_int(o, v::pack_lower(int_a(o), int_b(o))); }},
    {"add_to_number", [](const Operands& o) { put_int(o, v::add_to_number(a(o), int_b(o))); }},
    {"pair_even", [](const Operands& o) { put(o, v::pair_from_bf16(int_a(o)).even); }},
    {"pair_odd", [](const Operands& o) { put(o, v::pair_from_bf16(int_a(o)).odd); }},
    {"pack_signed",
     [](const Operands& o) {
       std::byte bytes[2 * v::kWidth];
       v::store_bytes(bytes, v::pack_signed(v::and_int(int_a(o), v::set_int(0x1ff01ffU))));
       put_int(o, v::load_signed_bytes(bytes));
     }},
    {"signed_bytes",
     [](const Operands& o) {
       std::byte bytes[2 * v::kWidth];
       v::store_bytes(bytes, v::pack_unsigned(v::and_int(int_a(o), v::set_int(0xff00ffU))));
       v::store_bytes(bytes, v::pack_signed(v::load_signed_bytes(bytes)));
       put_int(o, v::load_signed_bytes(bytes));
     }},
    {"pack_unsigned",
     [](const Operands& o) {
       std::byte bytes[2 * v::kWidth];
       v::store_bytes(bytes, v::pack_unsigned(v::and_int(int_a(o), v::set_int(0xff00ffU))));
       put_int(o, v::load_bytes(bytes));
     }},
};

inline v::Half half_lanes(const float* lanes) { return v::low_half(lanes_as_int(lanes)); }
/// The lower two bytes of each lane, and those as they were read into its halves.
inline v::Bytes byte_lanes(const float* lanes) {
  const v::Int x = lanes_as_int(lanes);
  const v::Int first = v::and_int(x, v::set_int(0xffU));
  return v::pack_unsigned(v::or_int(first, v::shift_left<8>(v::and_int(x, v::set_int(0xff00U)))));
}
inline void lanes_from_bytes(float* lanes, v::Int halves) {
  const v::Int second = v::shift_right<8>(v::and_int(halves, v::set_int(0xff0000U)));
  const v::Int both = v::or_int(v::and_int(halves, v::set_int(0xffU)), second);
  lanes_from_int(lanes, v::shift_right_signed<16>(v::shift_left<16>(both)));
}
inline const std::byte* bytes_at(const void* memory) {
  return static_cast<const std::byte*>(memory);
}

constexpr MemoryFunction kMemory[] = {
    {"load", 4, false, false,
     [](std::size_t, void* m, float* lanes) { v::store(lanes, v::load(static_cast<float*>(m))); }},
    {"load_first", 4, false, true,
     [](std::size_t count, void* m, float* lanes) {
       v::store(lanes, v::load_first(count, static_cast<float*>(m), v::load(lanes)));
     }},
    {"load_half", 2, false, false,
     [](std::size_t, void* m, float* lanes) {
       lanes_from_int(lanes, v::widen_signed(v::load_half(m)));
     }},
    {"load_half_first", 2, false, true,
     [](std::size_t count, void* m, float* lanes) {
       lanes_from_int(lanes, v::widen_signed(v::load_half_first(count, m)));
     }},
    {"load_bytes", 2, false, false,
     [](std::size_t, void* m, float* lanes) {
       lanes_from_bytes(lanes, v::load_bytes(bytes_at(m)));
     }},
    {"load_signed_bytes", 2, false, false,
     [](std::size_t, void* m, float* lanes) {
       lanes_from_bytes(lanes, v::load_signed_bytes(bytes_at(m)));
     }},
    {"store", 4, true, false,
     [](std::size_t, void* m, float* lanes) { v::store(static_cast<float*>(m), v::load(lanes)); }},
    {"stream", 4, true, false,
     [](std::size_t, void* m, float* lanes) {
       v::stream(static_cast<float*>(m), v::load(lanes));
       v::fence();
     }},
    {"store_first", 4, true, true,
     [](std::size_t count, void* m, float* lanes) {
       v::store_first(count, static_cast<float*>(m), v::load(lanes));
     }},
    {"store_half", 2, true, false,
     [](std::size_t, void* m, float* lanes) { v::store_half(m, half_lanes(lanes)); }},
    {"stream_half", 2, true, false,
     [](std::size_t, void* m, float* lanes) {
       v::stream_half(m, half_lanes(lanes));
       v::fence();
     }},
    {"store_half_first", 2, true, true,
     [](std::size_t count, void* m, float* lanes) {
       v::store_half_first(count, m, half_lanes(lanes));
     }},
    {"store_bytes", 2, true, false,
     [](std::size_t, void* m, float* lanes) {
       v::store_bytes(static_cast<std::byte*>(m), byte_lanes(lanes));
     }},
    {"stream_bytes", 2, true, false,
     [](std::size_t, void* m, float* lanes) {
       v::stream_bytes(static_cast<std::byte*>(m), byte_lanes(lanes));
       v::fence();
     }},
};

void part_places(const float* x, float* even, float* odd) {
  const v::Float low = v::load(x);
  const v::Float high = v::load(x + v::kWidth);
  v::store(even, v::even_places(low, high));
  v::store(odd, v::odd_places(low, high));
}

void add_squares(const float* x, double* sums) {
  const v::Float values = v::load(x);
  v::Double sum = v::add_square(v::low(values), v::zero_double());
  sum = v::add_square(v::high(values), sum);
  v::store_double(sums, sum);
}

constexpr VectorFunctions kFunctions{
    .name = SPILLWAY_SIMD_NAME,
    .width = v::kWidth,
    .lanes = kLanes,
    .memory = kMemory,
    .first = [](std::size_t count, const float* x, const float* rest,
                float* out) { v::store(out, v::first(count, v::load(x), v::load(rest))); },
    .sum = [](const float* x) { return v::sum(v::load(x)); },
    .largest = [](const float* x) { return v::largest(v::load(x)); },
    .largest_lane = [](const float* x) { return v::largest_lane(lanes_as_int(x)); },
    .add_squares = add_squares,
    .part_places = part_places,
};

}  // namespace
}  // namespace spillway::simd::test::SPILLWAY_SIMD
