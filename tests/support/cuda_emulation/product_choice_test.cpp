// Which algorithm multiplies: one where every operand starts at a multiple of 16 bytes, another one
// elsewhere; and how many bits of fp32 it takes.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/model/cuda/cuda_ops.hpp"
#include "runtime/model/cuda/gemm/gemm.hpp"
#include "tests/support/cuda_emulation/emulation.hpp"

namespace spillway::model::cuda::product_choice_test {
namespace {

using Row = std::array<float, 4>;
constexpr GemmShape kShape{.rows = 1, .columns = 1, .inner = 4};

/// The product of a row and a column of ones. The streams are idle between the calls: the device's
/// memory is the test's.
class ProductChoice : public testing::Test {
 protected:
  ProductChoice() {
    cuda_emulation::set_order(cuda_emulation::early);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&memory_, kOperandBytes + gemm_workspace().value()), cudaSuccess);
  }
  ~ProductChoice() override {
    static_cast<void>(cudaFree(memory_));
    static_cast<void>(cudaStreamDestroy(stream_));
  }

  [[nodiscard]] std::unique_ptr<CudaOps> ops(CudaOpsOptions options) const {
    std::unique_ptr<CudaOps> made = make_ops(std::move(options));
    made->bind_stream(stream_);
    return made;
  }
  /// Operands that start `shift` elements behind multiples of 64 bytes.
  [[nodiscard]] GemmArguments operands(const Row& row, std::size_t shift) const {
    constexpr std::size_t kApart = 16;
    float* const first = static_cast<float*>(memory_) + shift;
    std::ranges::copy(row, first);
    std::fill_n(first + kApart, row.size(), 1.0F);
    const auto view = [first](std::size_t operand, std::size_t count) {
      return offload::DeviceSpan<float>(first + operand * kApart, count).as<std::byte>();
    };
    return {
        .a = view(0, row.size()),
        .b = view(1, row.size()),
        .bias = {},
        .residual = {},
        .out = view(2, 1),
        .workspace = {static_cast<std::byte*>(memory_) + kOperandBytes, gemm_workspace().value()}};
  }
  [[nodiscard]] float product(CudaOps& ops, const Row& row, std::size_t shift = 0) const {
    const GemmArguments arguments = operands(row, shift);
    ops.gemm(ops.plan_gemm(kShape), arguments);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    return *reinterpret_cast<const float*>(arguments.out.address());
  }

 private:
  static constexpr std::size_t kOperandBytes = 1024;
  cudaStream_t stream_ = nullptr;
  void* memory_ = nullptr;
};

TEST_F(ProductChoice, IsTheTablesWhereOperandsAreAlignedAndTheLibrarysElsewhere) {
  // From first to last the sum stays at 2^24, which is even; the second half alone is 2.
  constexpr Row kRow{0x1p24F, 1, 1, 1};
  const CudaMath math{.compute = DType::fp32};
  const auto first = ops({.math = math});
  const auto timings = first->measure_gemm(kShape, operands(kRow, 0), 2);
  ASSERT_EQ(timings.size(), 2U);
  GemmChoices choices;
  choices.set(first->gemm_key(kShape), timings[1].algorithm);
  const auto chosen = ops({.math = math, .choices = choices});
  EXPECT_EQ(product(*first, kRow), 0x1p24F);
  EXPECT_EQ(product(*chosen, kRow), 0x1p24F + 2);
  EXPECT_EQ(product(*chosen, kRow, 1), 0x1p24F);
}

TEST_F(ProductChoice, TakesTenBitsWhereTf32IsAskedForAndElementsHaveMore) {
  constexpr Row kRow{1 + 0x1p-12F, 0, 0, 0};
  EXPECT_EQ(product(*ops({.math = {.compute = DType::fp32}}), kRow), 1 + 0x1p-12F);
  EXPECT_EQ(product(*ops({.math = {.compute = DType::fp32, .tf32 = true}}), kRow), 1.0F);
  const auto halves = ops({.math = {.compute = DType::bf16, .tf32 = true}});
  EXPECT_NO_THROW(static_cast<void>(halves->plan_gemm(kShape)));
}

TEST(Multiplier, TellsAFailureOfTheLibraryFromAShapeThatHasNoAlgorithm) {
  CublasLt library(std::span<const std::filesystem::path>{});
  const auto refusal = [&library]() -> std::optional<ErrorCode> {
    Multiplier multiplier(library, {.math = {}, .device_name = "GPU", .choices = {}});
    try {
      static_cast<void>(multiplier.plan(kShape));
    } catch (const Error& error) {
      return error.code();
    }
    return std::nullopt;
  };
  library.heuristic = [](auto...) { return CUBLAS_STATUS_NOT_INITIALIZED; };
  EXPECT_EQ(refusal(), ErrorCode::device_error);
  library.heuristic = [](auto...) { return CUBLAS_STATUS_NOT_SUPPORTED; };
  EXPECT_EQ(refusal(), ErrorCode::not_supported);
}

}  // namespace
}  // namespace spillway::model::cuda::product_choice_test
