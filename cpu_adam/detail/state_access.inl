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

/// 32 random bits for each of kWidth parameters from `index` on; see rounding_bits.
inline lanes::Int random_lanes(RoundingKey key, std::uint64_t index) {
  lanes::Int x = lanes::add_int(lanes::set_int(static_cast<std::uint32_t>(index)), lanes::iota());
  x = lanes::xor_int(x, lanes::set_int(key.first));
  x = lanes::xor_int(x, lanes::shift_right<16>(x));
  x = lanes::mul_int(x, lanes::set_int(0x7feb352dU));
  x = lanes::xor_int(x, lanes::shift_right<15>(x));
  x = lanes::xor_int(x, lanes::set_int(key.second));
  x = lanes::mul_int(x, lanes::set_int(0x846ca68bU));
  return lanes::xor_int(x, lanes::shift_right<16>(x));
}

template <>
struct Moments<StateFormat::bf16> {
  static constexpr std::size_t kVisit = 64;

  void open(const LaneScalars&, const UpdateRange&, std::size_t) {}
  lanes::Float m(const UpdateRange& range, std::size_t i) const {
    return widen<DType::bf16>(range.m_in, i);
  }
  lanes::Float v(const UpdateRange& range, std::size_t i) const {
    return widen<DType::bf16>(range.v_in, i);
  }
  template <bool Stream>
  void write(const LaneScalars& s, const UpdateRange& range, std::size_t i, std::size_t,
             const LaneState& next) {
    const lanes::Int random = random_lanes(s.key, range.index + i);
    if (s.has_m) {
      const lanes::Int low = lanes::and_int(random, lanes::set_int(0xffffU));
      put_half<Stream>(out_at<2>(range.m_out, i), lanes::round_bf16(next.m, low));
    }
    if (s.has_v) {
      const lanes::Int high = lanes::shift_right<16>(random);
      put_half<Stream>(out_at<2>(range.v_out, i), lanes::round_bf16(next.v, high));
    }
  }
  template <bool Stream>
  void close(const LaneScalars&, const UpdateRange&, std::size_t) {}
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
  lanes::Float m(const UpdateRange& range, std::size_t i) const {
    return Codes::decode_signed(m_values_, lanes::load_signed_bytes(byte_at(range.m_in, i)));
  }
  lanes::Float v(const UpdateRange& range, std::size_t i) const {
    const lanes::Int code = lanes::load_bytes(byte_at(range.v_in, i));
    return Codes::decode_unsigned(v_values_, lanes::add_int(code, lanes::set_int(1)));
  }
  template <bool Stream>
  void write(const LaneScalars& s, const UpdateRange&, std::size_t, std::size_t k,
             const LaneState& next) {
    // v has no sign to take away.
    if (s.has_m) remember(m_ + k, next.m, lanes::abs(next.m), m_largest_);
    if (s.has_v) remember(v_ + k, next.v, next.v, v_largest_);
  }
  template <bool Stream>
  void close(const LaneScalars& s, const UpdateRange& range, std::size_t first) {
    std::byte* const scales = out_at<8>(range.scales_out, first / kQuantizationBlock);
    if (s.has_m) {
      const lanes::Float minus_inverse = lanes::set(-store_scale(scales, m_largest_));
      SPILLWAY_UNROLL_BY_4
      for (std::size_t k = 0; k < kVisit; k += lanes::kWidth) {
        const lanes::Float y = lanes::load(m_ + k) * minus_inverse;
        const lanes::Float rank = rank_of<SignedMap>(lanes::abs(y));
        put_bytes<Stream>(out_at<1>(range.m_out, first + k),
                          lanes::pack_signed(lanes::with_sign_of(rank, y)));
      }
    }
    if (s.has_v) {
      const lanes::Float inverse = lanes::set(store_scale(scales + 4, v_largest_));
      SPILLWAY_UNROLL_BY_4
      for (std::size_t k = 0; k < kVisit; k += lanes::kWidth) {
        const lanes::Float y = lanes::load(v_ + k) * inverse;
        put_bytes<Stream>(out_at<1>(range.v_out, first + k),
                          lanes::pack_unsigned(rank_of<UnsignedMap>(y)));
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
  static void remember(float* target, lanes::Float value, lanes::Float magnitude,
                       lanes::Int& largest) {
    lanes::store(target, value);
    largest = lanes::max_unsigned(largest, lanes::bits(magnitude));
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

  Codes::Values m_values_, v_values_;
  lanes::Int m_largest_, v_largest_;
  alignas(kCacheLine) float m_[kVisit], v_[kVisit];
};

}  // namespace
}  // namespace spillway::cpu_adam::detail
