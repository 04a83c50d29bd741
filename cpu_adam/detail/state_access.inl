// How each state format comes into vectors and leaves them: the operations of codec.hpp, in the
// same order. Part of vector_entries.inl.
#pragma once

#include "cpu_adam/detail/vector_step.inl"

namespace spillway::cpu_adam::detail {
namespace {

/// How results leave: parameters not at all (fp32 alone), everything by ordinary stores, parameters
/// by non-temporal ones, everything by non-temporal ones.
enum class Output { none, store, stream_parameters, stream_all };

template <bool Stream>
inline void put(float* target, lanes::Float value) {
  if constexpr (Stream) {
    lanes::stream(target, value);
  } else {
    lanes::store(target, value);
  }
}

template <bool Stream>
inline void put_half(std::byte* target, lanes::Half value) {
  if constexpr (Stream) {
    lanes::stream_half(target, value);
  } else {
    lanes::store_half(target, value);
  }
}

template <bool Stream>
inline void put_halves(std::byte* target, lanes::Int value) {
  put<Stream>(reinterpret_cast<float*>(target), lanes::from_bits(value));
}

template <bool Stream>
inline void put_bytes(std::byte* target, lanes::Bytes value) {
  if constexpr (Stream) {
    lanes::stream_bytes(target, value);
  } else {
    lanes::store_bytes(target, value);
  }
}

/// Element `i` of an output array of elements of `Size` bytes.
template <std::size_t Size>
inline std::byte* out_at(void* base, std::size_t i) {
  return static_cast<std::byte*>(base) + i * Size;
}

template <StateFormat Format>
inline lanes::Float load_master(const UpdateRange& range, std::size_t i) {
  if constexpr (Format == StateFormat::fp32) {
    return widen<DType::fp32>(range.master_in, i);
  } else {
    const lanes::Half high = lanes::load_half(element_at<DType::bf16>(range.parameters_in, i));
    const lanes::Half low = lanes::load_half(element_at<DType::bf16>(range.master_in, i));
    return lanes::from_bits(
        lanes::add_int(lanes::bits(lanes::from_bf16(high)), lanes::widen_signed(low)));
  }
}

template <StateFormat Format, DType Parameter, Output Out>
inline void store_master(const UpdateRange& range, std::size_t i, lanes::Float value) {
  constexpr bool kStreamAll = Out == Output::stream_all;
  constexpr bool kStreamParameters = kStreamAll || Out == Output::stream_parameters;
  if constexpr (Format == StateFormat::fp32) {
    put<kStreamAll>(reinterpret_cast<float*>(out_at<4>(range.master_out, i)), value);
  } else {
    put_half<kStreamAll>(out_at<2>(range.master_out, i), lanes::low_half(lanes::bits(value)));
  }
  if constexpr (Out != Output::none) {
    std::byte* const target = out_at<size_of(Parameter)>(range.parameters_out, i);
    if constexpr (Parameter == DType::fp32) {
      put<kStreamParameters>(reinterpret_cast<float*>(target), value);
    } else {
      put_half<kStreamParameters>(target, Parameter == DType::bf16 ? lanes::parameter_to_bf16(value)
                                                                   : lanes::to_fp16(value));
    }
  }
}

/// Whether a format moves in pairs: none of its arrays has elements of more than 16 bits.
template <StateFormat Format>
constexpr bool kPaired = Format == StateFormat::bf16 || Format == StateFormat::int8;

inline constexpr std::size_t kPairWidth = 2 * lanes::kWidth;

/// 2 * kWidth elements of 16 bits from element `i` on.
inline lanes::Int load_halves(const void* base, std::size_t i) {
  return lanes::bits(lanes::load(reinterpret_cast<const float*>(element_at<DType::bf16>(base, i))));
}

template <DType Type>
inline lanes::Pair widen_pair(const void* base, std::size_t i) {
  if constexpr (Type == DType::bf16) {
    return lanes::pair_from_bf16(load_halves(base, i));
  } else {
    const lanes::Float first = widen<Type>(base, i);
    const lanes::Float second = widen<Type>(base, i + lanes::kWidth);
    return {lanes::even_places(first, second), lanes::odd_places(first, second)};
  }
}

/// join_master. A remainder is read as one without a sign, which is 2^15 too much.
inline lanes::Pair load_master_pair(const UpdateRange& range, std::size_t i) {
  const lanes::Int upper = load_halves(range.parameters_in, i);
  const lanes::Int lower =
      lanes::xor_int(load_halves(range.master_in, i), lanes::set_int(0x80008000U));
  const lanes::Int even = lanes::join_halves(lower, lanes::shift_left<16>(upper));
  const lanes::Int odd = lanes::join_halves(lanes::shift_right<16>(lower), upper);
  const lanes::Int less = lanes::set_int(0xffff8000U);  // -2^15
  return {lanes::from_bits(lanes::add_int(even, less)),
          lanes::from_bits(lanes::add_int(odd, less))};
}

template <bool Stream>
inline void store_master_pair(const UpdateRange& range, std::size_t i, const lanes::Pair& value) {
  const lanes::Int lower = lanes::pack_lower(lanes::bits(value.even), lanes::bits(value.odd));
  const lanes::Int half = lanes::set_int(0x8000);
  put_halves<Stream>(out_at<2>(range.master_out, i), lower);
  put_halves<Stream>(out_at<2>(range.parameters_out, i), lanes::round_pair(value, half, half));
}

/// The moments of one visit. `k` is the element's place in the visit, `i` in the range.
template <StateFormat Format>
struct Moments {
  static constexpr std::size_t kVisit = 64;

  void open(const LaneScalars&, const UpdateRange&, std::size_t) {}
  lanes::Float m(const UpdateRange& range, std::size_t i) const {
    return widen<DType::fp32>(range.m_in, i);
  }
  lanes::Float v(const UpdateRange& range, std::size_t i) const {
    return widen<DType::fp32>(range.v_in, i);
  }
  template <bool Stream>
  void write(const LaneScalars& s, const UpdateRange& range, std::size_t i, std::size_t,
             const LaneState& next) {
    if (s.has_m) put<Stream>(reinterpret_cast<float*>(out_at<4>(range.m_out, i)), next.m);
    if (s.has_v) put<Stream>(reinterpret_cast<float*>(out_at<4>(range.v_out, i)), next.v);
  }
  template <bool Stream>
  void close(const LaneScalars&, const UpdateRange&, std::size_t) {}
};

template <>
struct Moments<StateFormat::bf16> {
  static constexpr std::size_t kVisit = 256;

  void open(const LaneScalars& s, const UpdateRange& range, std::size_t first) {
    const std::uint32_t keyed = static_cast<std::uint32_t>(range.index + first) ^ s.key.first;
    visit_ = lanes::set_int(keyed ^ keyed >> 16);
    second_key_ = lanes::set_int(s.key.second);
  }
  lanes::Pair m(const UpdateRange& range, std::size_t i) const {
    return lanes::pair_from_bf16(load_halves(range.m_in, i));
  }
  lanes::Pair v(const UpdateRange& range, std::size_t i) const {
    return lanes::pair_from_bf16(load_halves(range.v_in, i));
  }
  template <bool Stream>
  void write(const LaneScalars& s, const UpdateRange& range, std::size_t i, std::size_t k,
             const lanes::Pair& m, const lanes::Pair& v) const {
    const lanes::Int even = unmixed_bits(k);
    const lanes::Int odd = unmixed_bits(k + 1);
    const lanes::Int upper_even = lanes::shift_right<16>(even);
    const lanes::Int upper_odd = lanes::shift_right<16>(odd);
    if (s.has_m) {
      const lanes::Int lower = lanes::set_int(0xffffU);
      put_halves<Stream>(
          out_at<2>(range.m_out, i),
          lanes::round_pair(m, lanes::and_int(lanes::xor_int(even, upper_even), lower),
                            lanes::and_int(lanes::xor_int(odd, upper_odd), lower)));
    }
    if (s.has_v) {
      put_halves<Stream>(out_at<2>(range.v_out, i), lanes::round_pair(v, upper_even, upper_odd));
    }
  }
  template <bool Stream>
  void close(const LaneScalars&, const UpdateRange&, std::size_t) {}

 private:
  /// rounding_bits of every other parameter from `place` in the visit on, before they are mixed for
  /// the last time. Key and first mixing are the visit's alone: a visit is whole in the index, so
  /// they shift no bit of a place anywhere.
  [[nodiscard]] lanes::Int unmixed_bits(std::size_t place) const {
    const lanes::Int places = lanes::xor_int(lanes::shift_left<1>(lanes::iota()),
                                             lanes::set_int(static_cast<std::uint32_t>(place)));
    lanes::Int x = lanes::mul_int(lanes::xor_int(visit_, places), lanes::set_int(0x7feb352dU));
    x = lanes::xor_int(x, lanes::shift_right<15>(x));
    return lanes::mul_int(lanes::xor_int(x, second_key_), lanes::set_int(0x846ca68bU));
  }

  lanes::Int visit_, second_key_;
};

/// A visit is one quantization block, whose scales are known once all of it has been updated.
template <>
struct Moments<StateFormat::int8> {
  static constexpr std::size_t kVisit = kQuantizationBlock;

  void open(const LaneScalars& s, const UpdateRange& range, std::size_t first) {
    const std::byte* const scales =
        element_at<DType::fp32>(range.scales_in, first / kQuantizationBlock * 2);
    // Codes of m have the sign opposite to their values: so do the tables.
    if (s.has_m) m_values_ = Codes::scaled_values<SignedMap>(-load_float(scales));
    if (s.has_v) v_values_ = Codes::scaled_values<UnsignedMap>(load_float(scales + 4));
    m_largest_ = v_largest_ = lanes::set_int(0);
  }
  lanes::Pair m(const UpdateRange& range, std::size_t i) const {
    const lanes::Int codes = lanes::load_signed_bytes(byte_at(range.m_in, i));
    const lanes::Int even = lanes::shift_right_signed<16>(lanes::shift_left<16>(codes));
    return {Codes::decode_signed(m_values_, even),
            Codes::decode_signed(m_values_, lanes::shift_right_signed<16>(codes))};
  }
  lanes::Pair v(const UpdateRange& range, std::size_t i) const {
    const lanes::Int codes = lanes::load_bytes(byte_at(range.v_in, i));
    const lanes::Int even = lanes::and_int(codes, lanes::set_int(0xffffU));
    return {Codes::decode_unsigned(v_values_, even),
            Codes::decode_unsigned(v_values_, lanes::shift_right<16>(codes))};
  }
  template <bool Stream>
  void write(const LaneScalars& s, const UpdateRange&, std::size_t, std::size_t k,
             const lanes::Pair& m, const lanes::Pair& v) {
    if (s.has_m) remember(m_ + k, m, {lanes::abs(m.even), lanes::abs(m.odd)}, m_largest_);
    if (s.has_v) remember(v_ + k, v, v, v_largest_);  // it has no sign to take away
  }
  template <bool Stream>
  void close(const LaneScalars& s, const UpdateRange& range, std::size_t first) {
    std::byte* const scales = out_at<8>(range.scales_out, first / kQuantizationBlock);
    // Both at first: each is a chain of operations that nothing else waits for.
    const float inverse_m = s.has_m ? store_scale(scales, m_largest_) : 0;
    const float inverse_v = s.has_v ? store_scale(scales + 4, v_largest_) : 0;
    if (s.has_m) {
      const lanes::Float minus_inverse = lanes::set(-inverse_m);
      SPILLWAY_UNROLL_BY_2
      for (std::size_t k = 0; k < kVisit; k += kPairWidth) {
        const lanes::Int even = code_of_m(m_ + k, minus_inverse);
        const lanes::Int odd = code_of_m(m_ + k + lanes::kWidth, minus_inverse);
        put_bytes<Stream>(out_at<1>(range.m_out, first + k),
                          lanes::pack_signed(lanes::pack_lower(even, odd)));
      }
    }
    if (s.has_v) {
      const lanes::Float inverse = lanes::set(inverse_v);
      SPILLWAY_UNROLL_BY_2
      for (std::size_t k = 0; k < kVisit; k += kPairWidth) {
        const lanes::Int even = code_of_v(v_ + k, inverse);
        const lanes::Int odd = code_of_v(v_ + k + lanes::kWidth, inverse);
        put_bytes<Stream>(out_at<1>(range.v_out, first + k),
                          lanes::pack_unsigned(lanes::pack_lower(even, odd)));
      }
    }
  }

 private:
  static float load_float(const std::byte* source) {
    float value;
    std::memcpy(&value, source, sizeof value);
    return value;
  }
  static const std::byte* byte_at(const void* base, std::size_t i) {
    return static_cast<const std::byte*>(base) + i;
  }
  static void remember(float* target, const lanes::Pair& value, const lanes::Pair& magnitude,
                       lanes::Int& largest) {
    lanes::store(target, value.even);
    lanes::store(target + lanes::kWidth, value.odd);
    const lanes::Int larger =
        lanes::max_unsigned(lanes::bits(magnitude.even), lanes::bits(magnitude.odd));
    largest = lanes::max_unsigned(largest, larger);
  }
  static float store_scale(std::byte* target, lanes::Int largest) {
    const std::uint32_t bits = lanes::largest_lane(largest);
    std::memcpy(target, &bits, sizeof bits);
    return inverse_scale(std::bit_cast<float>(bits));
  }
  template <class Map>
  static lanes::Float rank_of(lanes::Float y) {
    return Codes::rank<Map>(lanes::max(y, lanes::set(Map::kSmallest)));
  }
  static lanes::Int code_of_m(const float* values, lanes::Float minus_inverse) {
    const lanes::Float y = lanes::load(values) * minus_inverse;
    return lanes::to_int(lanes::with_sign_of(rank_of<SignedMap>(lanes::abs(y)), y));
  }
  static lanes::Int code_of_v(const float* values, lanes::Float inverse) {
    return lanes::to_int(rank_of<UnsignedMap>(lanes::load(values) * inverse));
  }

  Codes::Values m_values_, v_values_;
  lanes::Int m_largest_, v_largest_;
  alignas(kCacheLine) float m_[kVisit], v_[kVisit];
};

}  // namespace
}  // namespace spillway::cpu_adam::detail
