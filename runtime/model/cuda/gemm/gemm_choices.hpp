// GemmChoices: which algorithm multiplies which shape on which GPU, so that a run can record what
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
using GemmAlgorithm = std::array<std::uint64_t, 8>;

/// Returns "4096x6144x4096/nt/bias+residual/compute": rows, columns, inner, transpositions, what is
/// added, the result; then strides, if there are any.
[[nodiscard]] std::string name_of(const GemmShape& shape);

/// All that an algorithm may depend on.
struct GemmKey {
  std::string device;         ///< as the driver names it: "NVIDIA H100 80GB HBM3"
  std::uint64_t library = 0;  ///< cuBLASLt's version, 130100
  DType compute = DType::bf16;
  bool tf32 = false;
  bool deterministic = true;  ///< only algorithms with one order of sums were asked for
  bool aligned = true;        ///< every operand starts at a multiple of 16 bytes
  GemmShape shape;

  /// Returns "NVIDIA H100 80GB HBM3/130100/bf16/4096x6144x4096/nt/bias+residual/compute/aligned".
  [[nodiscard]] std::string text() const;
};

class GemmChoices {
 public:
  void set(const std::string& key, const GemmAlgorithm& algorithm) { table_[key] = algorithm; }
  [[nodiscard]] std::optional<GemmAlgorithm> find(const std::string& key) const;
  [[nodiscard]] std::size_t size() const { return table_.size(); }
  bool operator==(const GemmChoices&) const = default;
  /// Takes those of `other` too, which win where both know a key.
  void take(const GemmChoices& other);
  /// Returns how many keys have the same algorithm in `other`.
  [[nodiscard]] std::size_t common(const GemmChoices& other) const;

  /// Returns one JSON document, keys in order.
  [[nodiscard]] std::string to_json() const;
  /// Throws `Error{invalid_argument}` that names what is wrong with `text`.
  static GemmChoices from_json(std::string_view text);

 private:
  std::map<std::string, GemmAlgorithm> table_;
};

struct GemmTiming {
  GemmAlgorithm algorithm{};
  double milliseconds = 0;
};

/// An algorithm that gains less over the library's first proposal is not taken: two measurements of
/// the same one differ by as much.
inline constexpr double kLeastGemmGain = 0.02;

/// Returns which of `timings`, in the library's order and at least one, is to be used.
[[nodiscard]] std::size_t best_of(std::span<const GemmTiming> timings);

}  // namespace spillway::model::cuda
