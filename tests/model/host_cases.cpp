#include "runtime/model/host/host_ops.hpp"
#include "runtime/model/host/kernels.hpp"
#include "tests/model/ops_cases.hpp"

namespace spillway::model {

std::vector<OpsCase> all_cases() {
  std::vector<OpsCase> cases;
  for (const host::Kernels* kernels : host::all_kernels()) {
    if (!kernels->supported()) continue;
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
      cases.push_back({std::string(kernels->name), dtype});
    }
  }
  cases.push_back({"portable", DType::bf16, true});
  return cases;
}

std::vector<OpsCase> cases_in_parts() { return {}; }

OpsCase case_of(DType dtype) { return {"", dtype}; }

std::string reason_to_skip() { return {}; }

std::unique_ptr<Ops> make_case_ops(const OpsCase& c) {
  return host::make_ops({.compute_threads = c.threads,
                         .compute = c.dtype,
                         .kernels = c.kernels,
                         .widen_gemm = c.widen});
}

double device_tolerance(DType /*dtype*/) { return 0; }

}  // namespace spillway::model
