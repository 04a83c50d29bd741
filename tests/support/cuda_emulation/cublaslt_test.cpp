// The emulated cuBLASLt: products by definition, and calls that the documentation forbids.
#include <cublasLt.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/cuda_emulation/emulation.hpp"

namespace cuda_emulation::cublaslt_test {
namespace {

constexpr std::uint64_t kM = 3;
constexpr std::uint64_t kN = 4;
constexpr std::uint64_t kK = 5;
constexpr std::uint64_t kLeading = 8;  // of every matrix
constexpr std::size_t kWorkspace = std::size_t{1} << 20;

/// fp32: d [3, 4] = a [3, 5] b [5, 4] + bias [3].
class EmulatedCublasLt : public testing::Test {
 protected:
  EmulatedCublasLt() {
    set_order(early);
    EXPECT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatmulDescCreate(&description_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatmulPreferenceCreate(&preference_), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    for (void** memory : {&a_, &b_, &d_, &workspace_}) {
      EXPECT_EQ(cudaMalloc(memory, kWorkspace), cudaSuccess);
    }
    a_layout_ = layout(kM, kK);
    b_layout_ = layout(kK, kN);
    d_layout_ = layout(kM, kN);
  }
  ~EmulatedCublasLt() override {
    for (cublasLtMatrixLayout_t made : {a_layout_, b_layout_, d_layout_}) {
      cublasLtMatrixLayoutDestroy(made);
    }
    cublasLtMatmulPreferenceDestroy(preference_);
    cublasLtMatmulDescDestroy(description_);
    cublasLtDestroy(handle_);
    static_cast<void>(cudaStreamDestroy(stream_));
    for (void* memory : {a_, b_, d_, workspace_}) static_cast<void>(cudaFree(memory));
  }

  static cublasLtMatrixLayout_t layout(std::uint64_t rows, std::uint64_t columns,
                                       std::uint64_t leading = kLeading) {
    cublasLtMatrixLayout_t made = nullptr;
    cublasLtMatrixLayoutCreate(&made, CUDA_R_32F, rows, columns,
                               static_cast<std::int64_t>(leading));
    return made;
  }
  template <class Value>
  cublasStatus_t set(cublasLtMatmulDescAttributes_t attribute, Value value) {
    return cublasLtMatmulDescSetAttribute(description_, attribute, &value, sizeof(value));
  }
  cublasStatus_t propose(int count = 2) {
    const std::uint64_t most = kWorkspace;
    cublasLtMatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &most, sizeof(most));
    int found = 0;
    algorithms_.resize(static_cast<std::size_t>(count));
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, description_, a_layout_, b_layout_, d_layout_,
                                       d_layout_, preference_, count, algorithms_.data(), &found);
    algorithms_.resize(static_cast<std::size_t>(found));
    return status;
  }
  cublasStatus_t multiply(void* a, void* d, std::size_t algorithm = 0,
                          std::size_t workspace = kWorkspace) {
    const float one = 1;
    const float zero = 0;
    return cublasLtMatmul(handle_, description_, &one, a, a_layout_, b_, b_layout_, &zero, d,
                          d_layout_, d, d_layout_, &algorithms_[algorithm].algo, workspace_,
                          workspace, stream_);
  }

  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t description_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  cublasLtMatrixLayout_t a_layout_ = nullptr, b_layout_ = nullptr, d_layout_ = nullptr;
  cudaStream_t stream_ = nullptr;
  void *a_ = nullptr, *b_ = nullptr, *d_ = nullptr, *workspace_ = nullptr;
  std::vector<cublasLtMatmulHeuristicResult_t> algorithms_;
};

// The device's memory is the test's: the streams are idle.
TEST_F(EmulatedCublasLt, MultipliesAndAddsTheBiasToEveryColumn) {
  auto* const a = static_cast<float*>(a_);
  auto* const b = static_cast<float*>(b_);
  auto* const d = static_cast<float*>(d_);
  const auto small = [](std::uint64_t i) { return static_cast<float>(i * 7 % 11) - 5; };
  for (std::uint64_t i = 0; i < kLeading * kK; ++i) {
    a[i] = small(i);
    b[i] = small(i + 3);
  }
  float* const bias = a + 1024;
  for (std::uint64_t i = 0; i < kM; ++i) bias[i] = static_cast<float>(i) + 100;
  ASSERT_EQ(set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(propose(), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(algorithms_.size(), 2U);
  for (const std::size_t algorithm : {0U, 1U}) {
    ASSERT_EQ(multiply(a_, d_, algorithm), CUBLAS_STATUS_SUCCESS);
    for (std::uint64_t row = 0; row < kM; ++row) {
      for (std::uint64_t column = 0; column < kN; ++column) {
        float sum = bias[row];
        for (std::uint64_t k = 0; k < kK; ++k) sum += a[row + k * kLeading] * b[k + column * 8];
        EXPECT_EQ(d[row + column * kLeading], sum) << row << ", " << column;
      }
    }
  }
}

TEST_F(EmulatedCublasLt, RefusesMatricesThatDoNotFitAndAttributesOfAnotherSize) {
  EXPECT_EQ(set(CUBLASLT_MATMUL_DESC_TRANSA, std::uint8_t{1}), CUBLAS_STATUS_INVALID_VALUE);
  ASSERT_EQ(propose(), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(multiply(a_, d_, 1, kWorkspace - 1), CUBLAS_STATUS_INVALID_VALUE);
  cublasLtMatrixLayoutDestroy(a_layout_);
  a_layout_ = layout(kM, kK, kLeading + 1);
  EXPECT_EQ(multiply(a_, d_), CUBLAS_STATUS_INVALID_VALUE) << "an algorithm of another shape";
  for (const auto& wrong : {layout(kM, kK, kM - 1), layout(kK, kM)}) {
    cublasLtMatrixLayoutDestroy(a_layout_);
    a_layout_ = wrong;
    EXPECT_EQ(propose(), CUBLAS_STATUS_INVALID_VALUE);
  }
  ASSERT_EQ(set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(propose(), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, std::int32_t{CUDA_R_16BF}),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(propose(), CUBLAS_STATUS_NOT_SUPPORTED) << "a bias of another type";
}

TEST_F(EmulatedCublasLt, FindsOperandsThatBreakWhatWasPromised) {
  ASSERT_EQ(propose(), CUBLAS_STATUS_SUCCESS);
  EXPECT_DEATH(multiply(static_cast<float*>(a_) + 4, d_), "not aligned to the 256 bytes");
  EXPECT_DEATH(multiply(a_, static_cast<std::byte*>(d_) + kWorkspace), "no allocation");
  EXPECT_DEATH(multiply(a_, a_), "lies across one of its operands");
}

}  // namespace
}  // namespace cuda_emulation::cublaslt_test
