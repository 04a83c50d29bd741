#include <gtest/gtest.h>

#include "tests/model/cuda_test_device.hpp"
#include "tests/model/ops_cases.hpp"

namespace spillway::model {

std::vector<OpsCase> all_cases() {
  // Attention by cuDNN where it serves, and by our own kernels everywhere.
  return {{"gpu", DType::fp32},
          {"gpu", DType::bf16},
          {"gpu", DType::fp16},
          {"gpu_own_attention", DType::bf16},
          {"gpu_own_attention", DType::fp16}};
}

std::vector<OpsCase> cases_in_parts() {
  return {{"gpu_in_parts", DType::bf16}, {"gpu_in_parts", DType::fp16}};
}

OpsCase case_of(DType dtype) { return {"gpu", dtype}; }

std::string reason_to_skip() { return why_no_gpu(); }

std::unique_ptr<Ops> make_case_ops(const OpsCase& c) {
  use_gpu();
  TestDevice::current()->report = [](const char* what) { ADD_FAILURE() << what; };
  const bool in_parts = c.kernels == "gpu_in_parts";
  return make_gpu_ops({.compute = c.dtype,
                       .own_attention = c.kernels == "gpu_own_attention",
                       .score_gradients = in_parts ? Bytes{1} : cuda::kScoreGradients,
                       .least_tiles = 1});
}

// Sums of fp32 in another order; cuDNN rounds probabilities to 16 bits before it weighs with them.
double device_tolerance(DType dtype) { return dtype == DType::fp32 ? 1e-5 : 1e-2; }

}  // namespace spillway::model
