// More than 2^31 parameters in one range, on a few megabytes of memory mapped again and again.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cpu_adam/update_case.hpp"

namespace spillway::cpu_adam::test::large_range_test {
namespace {

constexpr std::size_t kPiece = std::size_t{16} << 20;

/// `size` bytes of addresses; the last piece has memory of its own, all before share another's.
class RepeatedMapping {
 public:
  explicit RepeatedMapping(std::size_t size)
      : size_(round_up(size, kPiece)), file_(::memfd_create("repeated", MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(file_, 2 * kPiece), 0);
    base_ = static_cast<std::byte*>(
        ::mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (std::size_t at = 0; at < size_; at += kPiece) {
      const bool last = at + kPiece == size_;
      const void* const piece =
          ::mmap(base_ + at, kPiece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
                 file_, last ? static_cast<off_t>(kPiece) : 0);
      EXPECT_NE(piece, MAP_FAILED);
    }
  }
  ~RepeatedMapping() {
    ::munmap(base_, size_);
    ::close(file_);
  }
  RepeatedMapping(const RepeatedMapping&) = delete;
  RepeatedMapping& operator=(const RepeatedMapping&) = delete;

  [[nodiscard]] std::byte* data() const { return base_; }

 private:
  static std::size_t round_up(std::size_t n, std::size_t unit) {
    return (n + unit - 1) / unit * unit;
  }
  std::size_t size_;
  int file_;
  std::byte* base_;
};

/// ThreadSanitizer keeps a shadow of each address, not of each page of memory: some 100 GB here.
constexpr bool kShadowedByAddress =
#if defined(__SANITIZE_THREAD__)
    true;
#elif defined(__has_feature)
    __has_feature(thread_sanitizer);
#else
    false;
#endif

TEST(LargeRange, IsUpdatedUpToItsLastParameterPastTwoToThe31) {
  if (kShadowedByAddress) GTEST_SKIP() << "a sanitizer's shadow of 20 GB of addresses has no room";
  constexpr std::size_t kCount = (std::size_t{1} << 31) + 4096 + 300;
  constexpr std::size_t kTail = 4096 + 300;  // compared with a range of its own
  const Kernel& kernel = find_kernel(best_isa(), DType::bf16, DType::bf16, StateFormat::int8);
  const RepeatedMapping gradient(2 * kCount), remainder(2 * kCount), m(kCount), v(kCount),
      parameters(2 * kCount), scales((kCount / 256 + 1) * 8);
  Random random = seeded_random();
  const Problem problem = random_problem(random, DType::bf16, kTail);
  const std::size_t first = kCount - kTail;
  const StateLayout layout = make_layout(StateFormat::int8, kTail);
  std::vector<std::byte> state(layout.bytes), halves(2 * kTail);
  pack_state(layout, {.master = problem.master, .m = problem.m, .v = problem.v}, state.data(),
             halves.data());
  std::memcpy(gradient.data() + 2 * first, problem.gradient.data(), 2 * kTail);
  std::memcpy(remainder.data() + 2 * first, state.data() + layout.master, 2 * kTail);
  std::memcpy(m.data() + first, state.data() + layout.m, kTail);
  std::memcpy(v.data() + first, state.data() + layout.v, kTail);
  const std::size_t scale_bytes = (kTail + 255) / 256 * 8;
  std::memcpy(scales.data() + first / 256 * 8, state.data() + layout.scales, scale_bytes);
  std::memcpy(parameters.data() + 2 * first, halves.data(), 2 * kTail);

  const UpdateScalars s = make_scalars({}, 2, 1);
  kernel.update(s, {.gradient = gradient.data(),
                    .master_in = remainder.data(),
                    .m_in = m.data(),
                    .v_in = v.data(),
                    .scales_in = reinterpret_cast<const float*>(scales.data()),
                    .parameters_in = parameters.data(),
                    .master_out = remainder.data(),
                    .m_out = m.data(),
                    .v_out = v.data(),
                    .scales_out = reinterpret_cast<float*>(scales.data()),
                    .parameters_out = parameters.data(),
                    .count = kCount});
  kernel.update(s, tile_range(layout, state.data(), state.data(), problem.gradient.data(),
                              halves.data(), halves.data()));
  const auto equal = [](const std::byte* a, const std::byte* b, std::size_t bytes) {
    return std::memcmp(a, b, bytes) == 0;
  };
  EXPECT_TRUE(equal(remainder.data() + 2 * first, state.data() + layout.master, 2 * kTail));
  EXPECT_TRUE(equal(m.data() + first, state.data() + layout.m, kTail));
  EXPECT_TRUE(equal(v.data() + first, state.data() + layout.v, kTail));
  EXPECT_TRUE(equal(scales.data() + first / 256 * 8, state.data() + layout.scales, scale_bytes));
  EXPECT_TRUE(equal(parameters.data() + 2 * first, halves.data(), 2 * kTail));
}

}  // namespace
}  // namespace spillway::cpu_adam::test::large_range_test
