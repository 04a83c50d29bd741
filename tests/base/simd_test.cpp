// The vectors of every instruction set against arithmetic lane by lane, and what they touch of
// memory.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/simd/portable.hpp"
#include "runtime/base/simd/processor.hpp"
#include "tests/base/simd_functions.hpp"
#include "tests/base/simd_scalars.hpp"

#define SPILLWAY_SIMD portable
#define SPILLWAY_SIMD_NAME "portable"
#include "tests/base/simd_functions.inl"
#undef SPILLWAY_SIMD
#undef SPILLWAY_SIMD_NAME
#if defined(__x86_64__)
#include "runtime/base/simd/avx2.hpp"
#include "runtime/base/simd/avx512.hpp"
#define SPILLWAY_SIMD avx2
#define SPILLWAY_SIMD_NAME "avx2"
SPILLWAY_TARGET_BEGIN(SPILLWAY_AVX2)
#include "tests/base/simd_functions.inl"
SPILLWAY_TARGET_END
#undef SPILLWAY_SIMD
#undef SPILLWAY_SIMD_NAME
#define SPILLWAY_SIMD avx512
#define SPILLWAY_SIMD_NAME "avx512"
SPILLWAY_TARGET_BEGIN(SPILLWAY_AVX512)
#include "tests/base/simd_functions.inl"
SPILLWAY_TARGET_END
#undef SPILLWAY_SIMD
#undef SPILLWAY_SIMD_NAME
#endif

namespace spillway::simd::test::simd_test {
namespace {

/// Lanes around everything that can go wrong, and random ones.
std::vector<float> values() {
  std::vector<float> list;
  for (const float size : {0.0F,
                           0x1p-149F,
                           0x1p-133F,
                           0x1p-126F,
                           0x1p-25F,
                           0x1.8p-25F,
                           0x1p-14F,
                           0.5F,
                           1.0F,
                           1.5F,
                           2.5F,
                           126.0F,
                           127.5F,
                           255.0F,
                           0x1.01p0F,
                           0x1.03p0F,
                           0x1.002p0F,
                           0x1.006p0F,
                           65519.0F,
                           65520.0F,
                           0x1.fffffep30F,
                           0x1p31F,
                           0x1.fffffep127F,
                           INFINITY,
                           NAN}) {
    list.insert(list.end(), {size, -size});
  }
  std::mt19937 random(1);
  for (int i = 0; i < 30; ++i) list.push_back(number(static_cast<Bits>(random())));
  std::uniform_real_distribution<float> spread(-300, 300);
  for (int i = 0; i < 30; ++i) list.push_back(spread(random));
  return list;
}

class Vectors : public testing::TestWithParam<VectorFunctions> {
 protected:
  static constexpr std::size_t kMost = 16;  ///< lanes
  using Lanes = std::array<float, kMost>;

  void SetUp() override {
    const std::string name = GetParam().name;
#if defined(__x86_64__)
    if (name == "avx2" && !has_avx2()) GTEST_SKIP() << "this processor has no AVX2";
    if (name == "avx512" && !has_avx512()) GTEST_SKIP() << "this processor has no AVX-512";
#endif
  }

  static bool same(const Expected& expected, float a, float b, float c, float got) {
    if (!expected.promised(a)) return true;
    if (expected.bits != nullptr) return bits(got) == expected.bits(bits(a), bits(b), bits(c));
    const float right = expected.number(a, b, c);
    return std::isnan(right) ? std::isnan(got) : bits(got) == bits(right);
  }
  static void compare(const LaneFunction& function, std::size_t width, const Lanes& a,
                      const Lanes& b, const Lanes& c) {
    Lanes out{};
    function.run({a.data(), b.data(), c.data(), out.data()});
    for (std::size_t i = 0; i < width; ++i) {
      ASSERT_TRUE(same(kExpected.at(function.name), a[i], b[i], c[i], out[i]))
          << function.name << std::hexfloat << " of " << a[i] << ", " << b[i] << ", " << c[i]
          << " in lane " << i << " is " << out[i] << " or " << bits(out[i]);
    }
  }
};

TEST_P(Vectors, ComputeInEachLaneWhatOneNumberGives) {
  const std::vector<float> list = values();
  std::size_t next = 0;
  const auto lanes_of = [&](std::size_t first, std::size_t step) {
    Lanes lanes;
    for (std::size_t i = 0; i < kMost; ++i) lanes[i] = list[(first + i * step) % list.size()];
    return lanes;
  };
  ASSERT_EQ(GetParam().lanes.size(), kExpected.size());
  for (const LaneFunction& function : GetParam().lanes) {
    for (std::size_t a = 0; a < list.size(); a += GetParam().width) {
      for (std::size_t b = 0; b < list.size(); ++b) {
        compare(function, GetParam().width, lanes_of(a, 1), lanes_of(b, 3), lanes_of(++next, 7));
      }
    }
  }
}

TEST_P(Vectors, WidenAndNarrowEveryHalf) {
  for (const LaneFunction& function : GetParam().lanes) {
    if (!std::string_view(function.name).starts_with("from_")) continue;
    for (Bits first = 0; first < 0x10000; first += static_cast<Bits>(GetParam().width)) {
      Lanes halves;
      for (std::size_t i = 0; i < kMost; ++i) halves[i] = number(first + static_cast<Bits>(i));
      compare(function, GetParam().width, halves, {}, {});
    }
  }
}

TEST_P(Vectors, ReduceByHalves) {
  const std::size_t width = GetParam().width;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 100; ++round) {
    Lanes x;
    for (float& lane : x) lane = normal(random) * std::exp2(10 * normal(random));
    Lanes sums = x;
    Lanes largest = x;
    for (std::size_t half = width / 2; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) {
        sums[i] += sums[i + half];
        largest[i] = std::max(largest[i], largest[i + half]);
      }
    }
    EXPECT_EQ(GetParam().sum(x.data()), sums[0]);
    EXPECT_EQ(GetParam().largest(x.data()), largest[0]);
    Bits most = 0;
    for (std::size_t i = 0; i < width; ++i) most = std::max(most, bits(x[i]));
    EXPECT_EQ(GetParam().largest_lane(x.data()), most);
    std::array<double, kMost / 2> squares{};
    GetParam().add_squares(x.data(), squares.data());
    for (std::size_t i = 0; i < width / 2; ++i) {
      const double low = x[i];
      const double high = x[i + width / 2];
      EXPECT_EQ(squares[i], std::fma(high, high, low * low));
    }
  }
}

TEST_P(Vectors, TakeApartEvenAndOddPlaces) {
  const std::size_t width = GetParam().width;
  std::array<float, 2 * kMost> x;
  std::iota(x.begin(), x.end(), 1.0F);
  Lanes even{};
  Lanes odd{};
  GetParam().part_places(x.data(), even.data(), odd.data());
  for (std::size_t i = 0; i < width; ++i) {
    EXPECT_EQ(even[i], x[2 * i]) << i;
    EXPECT_EQ(odd[i], x[2 * i + 1]) << i;
  }
}

// Of the last lane alone, which is in the upper half each time, a NaN is left.
TEST_P(Vectors, TakeTheUpperHalfForTheLargestWhereOneIsNaN) {
  const std::size_t width = GetParam().width;
  for (std::size_t lane = 0; lane < width; ++lane) {
    Lanes x;
    x.fill(1.0F);
    x[lane] = NAN;
    EXPECT_EQ(std::isnan(GetParam().largest(x.data())), lane == width - 1) << lane;
  }
}

TEST_P(Vectors, TakeTheFirstLanesOfOneAndTheRestOfAnother) {
  Lanes x;
  Lanes rest;
  std::iota(x.begin(), x.end(), 1.0F);
  std::iota(rest.begin(), rest.end(), 101.0F);
  for (std::size_t count = 0; count <= GetParam().width; ++count) {
    Lanes out{};
    GetParam().first(count, x.data(), rest.data(), out.data());
    for (std::size_t i = 0; i < GetParam().width; ++i) {
      EXPECT_EQ(out[i], i < count ? x[i] : rest[i]) << i << " of " << count;
    }
  }
}

/// A page between two that nobody may touch.
class LonelyPage {
 public:
  LonelyPage() : page_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))) {
    void* const mapped = ::mmap(nullptr, 3 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mapping_ = static_cast<std::byte*>(mapped);
    ::mprotect(mapping_ + page_, page_, PROT_READ | PROT_WRITE);
  }
  ~LonelyPage() { ::munmap(mapping_, 3 * page_); }
  LonelyPage(const LonelyPage&) = delete;
  LonelyPage& operator=(const LonelyPage&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const { return {mapping_ + page_, page_}; }

 private:
  std::size_t page_;
  std::byte* mapping_;
};

/// The lower bytes of a lane in memory, or what is read of them.
Bits element(const std::byte* memory, const MemoryFunction& function) {
  Bits value = 0;
  std::memcpy(&value, memory, function.element);
  const auto unused = static_cast<int>(32 - 8 * function.element);
  return bits(whole(value << unused) >> unused);
}

/// `count` elements at `offset` of the page, whose other bytes are neither read nor written.
void move(const MemoryFunction& function, std::size_t width, std::size_t count,
          std::span<std::byte> page, std::size_t offset) {
  SCOPED_TRACE(testing::Message() << function.name << " of " << count << " at " << offset);
  for (std::size_t i = 0; i < page.size(); ++i) page[i] = static_cast<std::byte>(i * 37 + 11);
  const std::vector<std::byte> before(page.begin(), page.end());
  std::array<float, 16> lanes;
  for (std::size_t i = 0; i < lanes.size(); ++i)
    lanes[i] = number(0x3f812345U + 0x1010101U * static_cast<Bits>(i));
  const auto given = lanes;
  function.run(count, page.data() + offset, lanes.data());
  std::vector<std::byte> after = before;
  for (std::size_t i = 0; i < width; ++i) {
    std::byte* const place = after.data() + offset + i * function.element;
    if (function.writes) {
      if (i < count) std::memcpy(place, &given[i], function.element);
    } else if (i < count) {
      EXPECT_EQ(bits(lanes[i]), element(place, function)) << i;
    } else {
      EXPECT_EQ(bits(lanes[i]), function.element == 4 ? bits(given[i]) : 0) << i;
    }
  }
  EXPECT_TRUE(std::ranges::equal(page, after));
}

TEST_P(Vectors, TouchNoByteThatIsNotTheirs) {
  const LonelyPage page;
  const std::size_t width = GetParam().width;
  for (const MemoryFunction& function : GetParam().memory) {
    for (std::size_t count = function.counts ? 0 : width; count <= width; ++count) {
      const std::size_t end = page.bytes().size() - count * function.element;
      for (const std::size_t offset : {end, std::size_t{0}}) {
        move(function, width, count, page.bytes(), offset);
      }
    }
  }
}

std::vector<VectorFunctions> all_vectors() {
  std::vector<VectorFunctions> list{portable::kFunctions};
#if defined(__x86_64__)
  list.insert(list.end(), {avx2::kFunctions, avx512::kFunctions});
#endif
  return list;
}

INSTANTIATE_TEST_SUITE_P(EverySet, Vectors, testing::ValuesIn(all_vectors()),
                         [](const auto& set) { return std::string(set.param.name); });

}  // namespace
}  // namespace spillway::simd::test::simd_test
