// A device that a kernel has broken: what operations say of it, and what still ends.
#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <string>

#include "runtime/base/error.hpp"
#include "tests/model/cuda_test_device.hpp"
#include "tests/support/cuda_emulation/emulation.hpp"

namespace spillway::model::broken_device_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kIllegalAddress = 700;

class BrokenDevice : public testing::Test {
 protected:
  BrokenDevice() {
    use_gpu();
    TestDevice::current()->report = [](const char* what) { ADD_FAILURE() << what; };
  }
  ~BrokenDevice() override { cuda_emulation::break_device(0); }

  /// The error of `operation` on a device that is broken.
  template <class Operation>
  static std::string message_of(const Operation& operation) {
    cuda_emulation::break_device(kIllegalAddress);
    std::string message = "nothing was thrown";
    try {
      operation();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::device_error);
      message = error.what();
    }
    cuda_emulation::break_device(0);
    return message;
  }
};

TEST_F(BrokenDevice, IsToldBehindTheStatusOfAProduct) {
  const auto ops = make_gpu_ops({.compute = DType::fp32});
  const GemmPlan plan = ops->plan_gemm({.rows = 8, .columns = 8, .inner = 8});
  const TestMemory a(8 * 8 * sizeof(float)), b(a.size()), out(a.size());
  const TestMemory space(plan.workspace.value());
  const GemmArguments arguments{.a = a.device(),
                                .b = b.device(),
                                .bias = {},
                                .residual = {},
                                .out = out.device(),
                                .workspace = space.device()};
  EXPECT_THAT(message_of([&] { ops->gemm(plan, arguments); }),
              AllOf(HasSubstr("cuBLASLt: the gemm [8, 8] x [8, 8]"),
                    HasSubstr("CUBLAS_STATUS_EXECUTION_FAILED"),
                    HasSubstr("CUDA says cudaErrorIllegalAddress")));
}

TEST_F(BrokenDevice, IsToldWithTheNameOfTheKernel) {
  const auto ops = make_gpu_ops({.compute = DType::fp32});
  const TestMemory sums(64), out(64);
  const RoundSumsOp op{.sums = sums.device().as<const float>(), .out = out.device()};
  EXPECT_THAT(message_of([&] { ops->run(op); }),
              AllOf(HasSubstr("launching a kernel ("), HasSubstr("Narrow<"),
                    HasSubstr("cudaErrorIllegalAddress")));
}

// It would end the program, and with it the message of the test that failed.
TEST_F(BrokenDevice, FailsTheTestWhoseMemoryEnds) {
  testing::TestPartResultArray failures;
  {
    const testing::ScopedFakeTestPartResultReporter reporter(&failures);
    const TestMemory memory(64);
    static_cast<void>(memory.device());
    cuda_emulation::break_device(kIllegalAddress);
  }
  ASSERT_GE(failures.size(), 1);
  EXPECT_THAT(failures.GetTestPartResult(0).message(), HasSubstr("cudaErrorIllegalAddress"));
}

}  // namespace
}  // namespace spillway::model::broken_device_test
