// MatmulChoices: which algorithm multiplies which shape on which GPU, so that a run can record what
// it used and another can use the same; and how one is chosen from timings. Pure, no CUDA.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/dtype.hpp"
#include "runtime/model/ops.hpp"

namespace spillway::model::cuda {

/// cuBLASLt's description of an algorithm, opaque: valid for one GPU model and library version.
using MatmulAlgorithm = std::array<std::uint64_t, 8>;

/// "4096x6144x4096/nt/bias+residual/compute": rows, columns, inner, transpositions, what is added,
/// the result; then strides, if there are any.
[[nodiscard]] std::string name_of(const MatmulShape& shape);

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
  /// Those of `other` too, which win where both know a key.
  void take(const MatmulChoices& other);
  /// How many keys have the same algorithm in `other`.
  [[nodiscard]] std::size_t common(const MatmulChoices& other) const;

  /// One JSON document, keys in order.
  [[nodiscard]] std::string to_json() const;
  /// Throws `Error{invalid_argument}` that names what is wrong with `text`.
  static MatmulChoices from_json(std::string_view text);

 private:
  std::map<std::string, MatmulAlgorithm> table_;
};

struct MatmulTiming {
  MatmulAlgorithm algorithm{};
  double milliseconds = 0;
};

/// An algorithm that gains less over the library's first proposal is not taken: two measurements of
/// the same one differ by as much.
inline constexpr double kLeastMatmulGain = 0.02;

/// Which of `timings`, in the library's order and at least one, is to be used.
[[nodiscard]] std::size_t best_of(std::span<const MatmulTiming> timings);

}  // namespace spillway::model::cuda
