// TensorPart: what one rank of a tensor group has of every matrix (Shoeybi et al. 2019,
// Megatron-LM, section 3): some heads, some columns of the MLP, some rows of the vocabulary. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/model/model_config.hpp"

namespace spillway::model {

/// Range [first, end) of what a tensor group shares out.
struct PartRange {
  std::uint64_t first = 0;
  std::uint64_t end = 0;
  [[nodiscard]] std::uint64_t size() const { return end - first; }
  bool operator==(const PartRange&) const = default;
};

struct TensorPart {
  std::uint32_t index = 0;
  std::uint32_t count = 1;
  /// Whether what lies between matrices, which is as wide as the model, is cut too, by tokens
  /// (Korthikanti et al. 2022, section 4.2.2). Norms then run on a rank's own tokens.
  bool sequence = false;

  [[nodiscard]] bool cuts() const { return count > 1; }
  /// Returns the part of `total` things in a row. Parts differ by one thing at most, and the first
  /// ones are the larger.
  [[nodiscard]] PartRange of(std::uint64_t total) const {
    const auto first = [&](std::uint64_t part) {
      return part * (total / count) + std::min(part, total % count);
    };
    return {first(index), first(index + std::uint64_t{1})};
  }
  bool operator==(const TensorPart&) const = default;
};

/// Returns how many of a micro-batch's tokens a rank has between matrices. Throws
/// `Error{invalid_argument}` if the ranks do not divide them.
[[nodiscard]] std::uint64_t own_tokens(const TensorPart& part, std::uint64_t tokens);

/// The heads of a rank.
struct HeadShare {
  PartRange queries;
  PartRange keys;  ///< the key/value heads that they read
  /// Whether other ranks read these key/value heads too. Then there are more ranks than such heads,
  /// and a rank has one.
  bool shares_keys = false;
};
/// Shares out key/value heads with the query heads that read them. Where there are more ranks, a
/// key/value head has several, the last ones one more than the first, which share out its query
/// heads. No rank has more heads than the first.
[[nodiscard]] HeadShare heads_of(const ModelConfig& config, const TensorPart& part);

/// Returns the sizes of this part's layers: its heads, the key/value heads that they read, and its
/// columns of the MLP. Throws `Error{invalid_argument}` if a rank would have none of something.
[[nodiscard]] ModelConfig config_of_part(const ModelConfig& config, const TensorPart& part);

}  // namespace spillway::model
