// The bodies of the device's kernels on the CPU, every thread of the grid after the other, against
// the CPU's kernels; and the launches that are chosen. What this leaves to a GPU is the launch and
// the compiler's code.
#include <array>
#include <memory>

#include "cpu_adam/codec.hpp"
#include "cpu_adam/cuda/detail/codec_tables.hpp"
#include "cpu_adam/cuda/detail/gradient_body.hpp"
#include "cpu_adam/cuda/detail/quantized_body.hpp"
#include "cpu_adam/cuda/detail/update_body.hpp"
#include "cpu_adam/cuda/detail/update_jobs.hpp"
#include "runtime/base/simd/flush_denormals.hpp"
#include "tests/cpu_adam/device_update_contract.hpp"

namespace spillway::cpu_adam::test::cuda_bodies_test {
namespace {

namespace device = cuda::detail;
using simd::FlushDenormals;

// Fewer than there is work for, so that each takes several strides; and no power of two.
constexpr std::size_t kGridThreads = 37;
constexpr std::size_t kGridWarps = 3;

template <class Body>
[[gnu::noinline]] void each_of(std::size_t threads, const Body& body) {
  for (std::size_t thread = 0; thread < threads; ++thread) body(thread);
}

/// A device whose memory is the heap and whose threads run one after the other.
class SerialDevice {
 public:
  static std::string unavailable() { return ""; }

  std::byte* allocate(std::size_t size) {
    constexpr std::size_t kLine = 64;
    memory_.push_back(std::make_unique<std::byte[]>(size + kLine));
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.back().get());
    return memory_.back().get() + (kLine - address % kLine);
  }
  static void upload(std::byte* target, std::span<const std::byte> source) {
    std::copy(source.begin(), source.end(), target);
  }
  static void download(std::span<std::byte> target, const std::byte* source) {
    std::copy_n(source, target.size(), target.begin());
  }

  static void update(const cuda::RangeTypes& types, std::span<const ParameterGroup> groups,
                     const UpdateRange& range) {
    device::check_update(types, range);
    device::with_dtype(types.gradient, [&](auto gradient) {
      constexpr DType kGradient = decltype(gradient)::value;
      if (types.format == StateFormat::int8 && range.count > 0) {
        run_quantized<kGradient>(device::make_quantized_job(types, groups, range));
      } else if (range.count > 0) {
        device::for_each_job(types, groups, range, [&](const device::UpdateJob& job) {
          if (types.format == StateFormat::fp32) run<StateFormat::fp32, kGradient>(job);
          if (types.format == StateFormat::split) run<StateFormat::split, kGradient>(job);
          if (types.format == StateFormat::bf16) run<StateFormat::bf16, kGradient>(job);
        });
      }
    });
  }

  static void accumulate(DType dtype, const void* source, float* target, std::size_t count,
                         bool first) {
    const FlushDenormals guard;
    const device::Cut cut = device::conversion_cut(dtype, source, target, count);
    device::with_dtype(dtype, [&](auto type) {
      each_of(kGridThreads, [&](std::size_t thread) {
        device::accumulate_thread<decltype(type)::value>(source, target, first, cut, thread,
                                                         kGridThreads);
      });
    });
  }

  static void round_gradient(DType dtype, const float* source, void* target, std::size_t count) {
    const FlushDenormals guard;
    const device::Cut cut = device::conversion_cut(dtype, target, source, count);
    device::with_dtype(dtype, [&](auto type) {
      each_of(kGridThreads, [&](std::size_t thread) {
        device::round_thread<decltype(type)::value>(source, target, cut, thread, kGridThreads);
      });
    });
  }

  static void sum_squares(DType dtype, const void* gradient, std::size_t count, double* leaves) {
    const FlushDenormals guard;
    device::with_dtype(dtype, [&](auto type) {
      each_of(kGridWarps, [&](std::size_t warp) {
        device::sum_squares_warp<decltype(type)::value>(SerialWarp{}, gradient, count, leaves, warp,
                                                        kGridWarps);
      });
    });
  }

 private:
  template <StateFormat Format, DType Gradient>
  static void run(const device::UpdateJob& job) {
    const FlushDenormals guard;
    each_of(kGridThreads, [&](std::size_t thread) {
      device::update_thread<Format, Gradient>(job, thread, kGridThreads);
    });
  }
  template <DType Gradient>
  static void run_quantized(const device::QuantizedJob& job) {
    static constexpr device::CodecTables kTables = device::make_codec_tables();
    const FlushDenormals guard;
    each_of(job.blocks(), [&](std::size_t block) {
      device::update_quantized<Gradient>(SerialWarp{}, job, kTables, block);
    });
  }

  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

INSTANTIATE_TYPED_TEST_SUITE_P(Serial, DeviceUpdate, SerialDevice);

/// fp32 numbers of [0, 1] and NaN, dense where the codes change.
[[gnu::noinline]] void expect_equal_codes(float x, float inverse,
                                          const device::CodecTables& tables) {
  ASSERT_EQ(device::encode_m(tables.m, x, inverse), encode_signed(x, inverse)) << x;
  ASSERT_EQ(device::encode_v(tables.v, x, inverse), encode_unsigned(x, inverse)) << x;
}

TEST(CodecTables, EncodeAsTheCodecDoes) {
  const device::CodecTables tables = device::make_codec_tables();
  const FlushDenormals guard;
  const std::uint32_t one = std::bit_cast<std::uint32_t>(1.0F);
  for (std::uint32_t bits = 0; bits <= one + 1; bits += 997) {
    ASSERT_NO_FATAL_FAILURE(expect_equal_codes(std::bit_cast<float>(bits), 1.0F, tables));
    ASSERT_NO_FATAL_FAILURE(
        expect_equal_codes(std::bit_cast<float>(bits | 0x80000000U), 1.0F, tables));
  }
  const auto near = [&](float y) {
    for (int step = -3; step <= 3; ++step) {
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(y) + static_cast<std::uint32_t>(step);
      expect_equal_codes(std::bit_cast<float>(bits), 1.0F, tables);
    }
  };
  for (const float threshold : SignedMap::kThresholds) near(threshold);
  for (const float threshold : UnsignedMap::kThresholds) near(threshold);
  near(SignedMap::kSmallest);
  near(UnsignedMap::kSmallest);
  near(1.0F);
  expect_equal_codes(std::numeric_limits<float>::quiet_NaN(), 0.0F, tables);
  expect_equal_codes(-std::numeric_limits<float>::infinity(), 0.0F, tables);
}

TEST(CodecTables, DecodeAsTheCodecDoes) {
  const device::CodecTables tables = device::make_codec_tables();
  const FlushDenormals guard;
  for (const float scale : {0.0F, 1e-37F, 0.3F, 1.0F, 7e30F}) {
    for (int code = 0; code < 256; ++code) {
      const auto unsigned_code = static_cast<std::uint8_t>(code);
      const auto signed_code = static_cast<std::int8_t>(code - 128);
      const float m = device::decode_m(tables.m, signed_code, scale);
      const float v = device::decode_v(tables.v, unsigned_code, scale);
      ASSERT_TRUE(same(m, decode_signed(signed_code, scale))) << code - 128 << " x " << scale;
      ASSERT_TRUE(same(v, decode_unsigned(unsigned_code, scale))) << code << " x " << scale;
    }
  }
}

TEST(DeviceCut, StartsWhereEveryArrayIsAligned) {
  alignas(64) std::byte bytes[256];
  const auto cut = [&](std::size_t first4, std::size_t first2, std::size_t count) {
    return device::make_cut(count,
                            {{bytes + 4 * first4, 4}, {bytes + 2 * first2, 2}, {nullptr, 4}});
  };
  EXPECT_EQ(cut(0, 0, 20).head, 0U);
  EXPECT_EQ(cut(0, 0, 20).parts, 2U);
  EXPECT_EQ(cut(3, 3, 20).head, 5U);
  EXPECT_EQ(cut(3, 3, 20).parts, 1U);
  EXPECT_EQ(cut(3, 2, 20).parts, 0U);  // never together
  EXPECT_EQ(cut(3, 2, 20).singles(), 20U);
  EXPECT_EQ(cut(3, 3, 5).parts, 0U);
  EXPECT_EQ(cut(0, 0, 0).work(), 0U);
}

TEST(QuantizedJob, MovesVectorsWhereOneMayStartInEveryArray) {
  constexpr cuda::RangeTypes kTypes{
      .format = StateFormat::int8, .gradient = DType::bf16, .parameter = DType::bf16};
  alignas(64) std::byte bytes[64] = {};
  const auto aligned_with = [&](auto array, std::size_t shift) {
    UpdateRange range{.gradient = bytes,
                      .master_in = bytes,
                      .m_in = bytes,
                      .v_in = bytes,
                      .parameters_in = bytes,
                      .master_out = bytes,
                      .m_out = bytes,
                      .v_out = bytes,
                      .parameters_out = bytes,
                      .count = 8};
    range.*array = bytes + shift;
    return device::make_quantized_job(kTypes, one_group({}), range).aligned;
  };
  // Eight numbers of 16 bits take 16 bytes, eight codes take 8.
  const auto expect_vectors_of = [&](std::size_t size, auto arrays) {
    for (const auto array : arrays) {
      EXPECT_TRUE(aligned_with(array, size));
      EXPECT_FALSE(aligned_with(array, size / 2));
    }
  };
  using Range = UpdateRange;
  expect_vectors_of(16, std::array{&Range::gradient, &Range::master_in, &Range::parameters_in});
  expect_vectors_of(16, std::array{&Range::master_out, &Range::parameters_out});
  expect_vectors_of(8, std::array{&Range::m_in, &Range::v_in});
  expect_vectors_of(8, std::array{&Range::m_out, &Range::v_out});
}

TEST(QuantizedJob, HasAsManyGroupsAsALaunchTakes) {
  constexpr cuda::RangeTypes kTypes{
      .format = StateFormat::int8, .gradient = DType::bf16, .parameter = DType::bf16};
  std::vector<ParameterGroup> groups;
  for (std::uint64_t k = 1; k <= cuda::kMaxQuantizedGroups; ++k) {
    groups.push_back({.end = 100 * k, .scalars = make_scalars({}, 1, 1)});
  }
  const device::QuantizedJob job =
      device::make_quantized_job(kTypes, groups, {.count = groups.back().end});
  ASSERT_EQ(job.group_count, cuda::kMaxQuantizedGroups);
  for (std::size_t k = 0; k < groups.size(); ++k) EXPECT_EQ(job.groups[k].end, groups[k].end);
}

ErrorCode error_of(const cuda::RangeTypes& types, std::span<const ParameterGroup> groups,
                   const UpdateRange& range) {
  try {
    SerialDevice::update(types, groups, range);
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::internal;
}

TEST(DeviceUpdateErrors, TypesThatDoNotGoTogetherAreRefused) {
  const cuda::RangeTypes types{.format = StateFormat::split, .parameter = DType::fp32};
  EXPECT_EQ(error_of(types, one_group({}), {.count = 8}), ErrorCode::invalid_argument);
}

TEST(DeviceUpdateErrors, AnArrayThatIsNotAlignedToItsElementIsRefused) {
  alignas(8) std::byte bytes[64] = {};
  const UpdateRange range{
      .gradient = bytes, .master_in = bytes + 2, .master_out = bytes + 2, .count = 4};
  EXPECT_EQ(error_of({}, one_group({}), range), ErrorCode::invalid_argument);
}

TEST(DeviceUpdateErrors, MoreGroupsThanALaunchTakesAreRefusedInFormatInt8) {
  const cuda::RangeTypes types{
      .format = StateFormat::int8, .gradient = DType::bf16, .parameter = DType::bf16};
  std::vector<ParameterGroup> groups;
  for (std::uint64_t k = 0; k <= cuda::kMaxQuantizedGroups; ++k) {
    groups.push_back({.end = 100 * (k + 1), .scalars = make_scalars({}, 1, 1)});
  }
  const UpdateRange range{.count = groups.back().end};
  EXPECT_EQ(error_of(types, groups, range), ErrorCode::invalid_argument);
}

TEST(DeviceUpdateDeathTest, ParameterWithoutAGroupIsABrokenInvariant) {
  alignas(64) static float numbers[16] = {};
  const UpdateRange range{.gradient = numbers,
                          .master_in = numbers,
                          .m_in = numbers,
                          .v_in = numbers,
                          .master_out = numbers,
                          .m_out = numbers,
                          .v_out = numbers,
                          .count = 10};
  const std::vector<ParameterGroup> groups{{.end = 5, .scalars = make_scalars({}, 1, 1)}};
  EXPECT_DEATH(SerialDevice::update({}, groups, range), "belong to no group");
}

}  // namespace
}  // namespace spillway::cpu_adam::test::cuda_bodies_test
