// What the tests of operations and models are run with. A test program says by host_cases.cpp or
// gpu_cases.cpp what that is.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/base/dtype.hpp"
#include "runtime/model/ops.hpp"

namespace spillway::model {

struct OpsCase {
  std::string kernels;  ///< of the host; "gpu" and what begins so name the device
  DType dtype;
  bool widen = false;
  int threads = 2;
};

/// Every implementation and dtype of the program's device.
[[nodiscard]] std::vector<OpsCase> all_cases();
/// Those whose attention works in the smallest parts; none where it knows no parts.
[[nodiscard]] std::vector<OpsCase> cases_in_parts();
/// The best implementation of `dtype`.
[[nodiscard]] OpsCase case_of(DType dtype);
/// Not empty: why no test of this program can run here.
[[nodiscard]] std::string reason_to_skip();
/// Also makes the program's device the one that memory is taken of.
[[nodiscard]] std::unique_ptr<Ops> make_case_ops(const OpsCase& c);
/// The least relative tolerance, of the largest value, where the program's device rounds inside an
/// operation what the host does not.
[[nodiscard]] double device_tolerance(DType dtype);

}  // namespace spillway::model
