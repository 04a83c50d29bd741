// Indices of kernel bodies: elements beyond 2^32, groups and workspaces of reductions.
#include <sys/mman.h>

#include <utility>

#include "tests/model/cuda_bodies_support.hpp"

namespace spillway::model::cuda_bodies_index_test {
namespace {

namespace bodies = cuda::bodies;

/// Address space for many elements of which a test touches a few: only those take memory.
class Sparse {
 public:
  explicit Sparse(std::size_t bytes)
      : bytes_(bytes),
        address_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  ~Sparse() {
    if (usable()) munmap(address_, bytes_);
  }
  [[nodiscard]] bool usable() const { return address_ != MAP_FAILED; }
  template <class T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(address_);
  }
  [[nodiscard]] Tensor device() const { return {static_cast<std::byte*>(address_), bytes_}; }

 private:
  std::size_t bytes_;
  void* address_;
};

constexpr std::uint64_t kFar = (std::uint64_t{1} << 32) + 8;

TEST(CudaIndices, NormRowsMayLieBeyond32Bits) {
  const Sparse x((kFar + 64) * sizeof(std::uint16_t));
  const Sparse y((kFar + 64) * sizeof(std::uint16_t));
  if (!x.usable() || !y.usable())
    GTEST_SKIP() << "this machine has no address space for two times 8 GiB";
  auto* elements = x.as<std::uint16_t>();
  for (std::size_t i = 0; i < 64; ++i) {
    elements[i] = to_bf16(static_cast<float>(i));
    elements[kFar + i] = to_bf16(static_cast<float>(i));
  }
  const std::vector<std::uint16_t> weight(64, to_bf16(1));
  std::vector<float> statistics(4);
  SerialOps own(DType::bf16, Order::forward);
  own.norm_forward({.kind = NormKind::rms, .tokens = 2, .width = 64},
                   {.input = {x.device(), kFar},
                    .weight = {reinterpret_cast<const std::byte*>(weight.data()), 128},
                    .bias = {},
                    .out = {y.device(), kFar},
                    .statistics = {statistics.data(), 4}});
  EXPECT_NE(y.as<std::uint16_t>()[63], 0);
  EXPECT_EQ(std::memcmp(y.as<std::uint16_t>(), y.as<std::uint16_t>() + kFar, 128), 0);
}

TEST(CudaIndices, TableRowsMayLieBeyond32Bits) {
  constexpr std::uint64_t kWidth = 1 << 16;
  constexpr std::uint64_t kVocabulary = (1 << 16) + 2;
  const Sparse table(kVocabulary * kWidth * sizeof(std::uint16_t));
  const Sparse gradient(kVocabulary * kWidth * sizeof(float));
  if (!table.usable() || !gradient.usable())
    GTEST_SKIP() << "this machine has no address space for 24 GiB";
  constexpr std::int32_t kToken = (1 << 16) + 1;
  auto* row = table.as<std::uint16_t>() + std::uint64_t{kToken} * kWidth;
  row[kWidth - 1] = to_bf16(3);
  const TestMemory out(kWidth * sizeof(std::uint16_t));
  const EmbeddingShape s{.batch = 1, .sequence = 1, .width = kWidth, .vocabulary = kVocabulary};
  SerialOps own(DType::bf16, Order::forward);
  own.embedding_forward(s, {&kToken, 1}, table.device(), {}, out.device());
  EXPECT_EQ(out.as<std::uint16_t>()[kWidth - 1], to_bf16(3));
  const TestMemory space(own.embedding_workspace(s).value());
  own.embedding_backward(s, {&kToken, 1}, out.device(), {gradient.device().as<float>(), false}, {},
                         space.device());
  EXPECT_EQ(gradient.as<float>()[(std::uint64_t{kToken} + 1) * kWidth - 1], 3.0F);
}

TEST(CudaIndices, LogitsMayLieBeyond32Bits) {
  constexpr std::uint64_t kVocabulary = (std::uint64_t{1} << 27) + 1;
  constexpr std::uint64_t kRow = 33;
  const Sparse logits((kRow + 1) * kVocabulary * sizeof(float));
  if (!logits.usable()) GTEST_SKIP() << "this machine has no address space for 17 GiB";
  std::vector<std::uint64_t> ends;
  // The last row's packs: where they start, and that they cover the row.
  std::uint64_t covered = 0;
  for (unsigned lane = 0; lane < 512; ++lane) {
    bodies::visit_range<bodies::kPack>(
        kRow * kVocabulary, kRow * kVocabulary + 4099, lane, 512, [&](auto pack, std::uint64_t i) {
          constexpr unsigned kN = decltype(pack)::value;
          EXPECT_TRUE(i >= kRow * kVocabulary && i + kN <= kRow * kVocabulary + 4099);
          EXPECT_EQ(i % kN, 0U);
          logits.as<float>()[i] += 1;
          covered += kN;
        });
  }
  EXPECT_EQ(covered, 4099U);
}

TEST(CudaIndices, ItemsOfRowsOfHeadsAreCountedIn64Bits) {
  const bodies::Rope<bodies::kPack, bodies::Bf16> rope{.heads = {},
                                                       .head_count = 64,
                                                       .head_dim = 128,
                                                       .sequence = 1,
                                                       .angles = nullptr,
                                                       .direction = 1};
  static_assert(std::is_same_v<decltype(rope.parts() * rope.packs()), std::uint64_t>);
  const Sparse space(4 * kFar);
  if (!space.usable()) GTEST_SKIP() << "this machine has no address space for 16 GiB";
  const auto* first = space.as<std::byte>();
  const bodies::Rows<const std::byte> rows{first, kFar};
  EXPECT_EQ(static_cast<std::uint64_t>(rows.at(3, 5, 128) - first), 3 * kFar + 5 * 128);
}

TEST(CudaItems, ArePacksButForWhatIsLeftAfterTheLastWholeOne) {
  using Visits = std::vector<std::pair<unsigned, std::uint64_t>>;  // elements, the first of them
  const auto visits = [](std::uint64_t count) {
    Visits found;
    for (std::uint64_t item = 0; item < bodies::item_count<4>(count); ++item) {
      bodies::visit_item<4>(item, count, [&](auto pack, std::uint64_t first) {
        found.emplace_back(decltype(pack)::value, first);
      });
    }
    return found;
  };
  EXPECT_EQ(visits(8), (Visits{{4, 0}, {4, 4}}));
  EXPECT_EQ(visits(10), (Visits{{4, 0}, {4, 4}, {1, 8}, {1, 9}}));
}

TEST(CudaReductions, GroupsCoverTheRowsAndFitTheWorkspaceOfAnyLargerCall) {
  std::uint64_t before = 0;
  for (std::uint64_t columns = 1; columns < 40'000; columns += 1 + columns / 50) {
    for (const std::uint64_t rows : {1U, 2U, 511U, 513U, 4097U, 65'537U}) {
      const std::uint64_t in_group = bodies::rows_in_group(rows, columns);
      const std::uint64_t groups = bodies::group_count(rows, columns);
      EXPECT_GE(groups * in_group, rows);
      EXPECT_LT((groups - 1) * in_group, rows);
      EXPECT_GE(bodies::reduction_bytes(rows, columns), groups * columns * sizeof(float));
      EXPECT_GE(bodies::reduction_bytes(rows, columns), rows * sizeof(double));
      EXPECT_GE(bodies::reduction_bytes(rows + 1, columns), bodies::reduction_bytes(rows, columns));
    }
    const std::uint64_t bytes = bodies::reduction_bytes(65'537, columns);
    EXPECT_GE(bytes, before) << columns;
    before = bytes;
  }
}

}  // namespace
}  // namespace spillway::model::cuda_bodies_index_test
