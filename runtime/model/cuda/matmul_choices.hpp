// MatmulChoices: which algorithm multiplies which shape on which GPU, so that a run can record what
// it used and another can use the same. Pure, no CUDA.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/dtype.hpp"
#include "runtime/model/ops.hpp"

namespace spillway::model::cuda {

/// cuBLASLt's description of an algorithm, opaque: valid for one GPU model and library version.
using MatmulAlgorithm = std::array<std::uint64_t, 8>;

/// All that an algorithm may depend on.
struct MatmulKey {
  std::string device;         ///< as the driver names it: "NVIDIA H100 80GB HBM3"
  std::uint64_t library = 0;  ///< cuBLASLt's version, 130100
  DType compute = DType::bf16;
  bool tf32 = false;
  bool deterministic = true;  ///< only algorithms with one order of sums were asked for
  bool aligned = true;        ///< every operand starts at a multiple of 16 bytes
  MatmulShape shape;

  /// "NVIDIA H100 80GB HBM3/130100/bf16/4096x6144x4096/nt/bias+residual/compute/aligned"
  [[nodiscard]] std::string text() const;
};

class MatmulChoices {
 public:
  void set(const std::string& key, const MatmulAlgorithm& algorithm) { table_[key] = algorithm; }
  [[nodiscard]] std::optional<MatmulAlgorithm> find(const std::string& key) const;
  [[nodiscard]] std::size_t size() const { return table_.size(); }
  bool operator==(const MatmulChoices&) const = default;

  /// One JSON document, keys in order.
  [[nodiscard]] std::string to_json() const;
  /// Throws `Error{invalid_argument}` that names what is wrong with `text`.
  static MatmulChoices from_json(std::string_view text);

 private:
  std::map<std::string, MatmulAlgorithm> table_;
};

}  // namespace spillway::model::cuda
