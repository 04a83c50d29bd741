// Changes of a run's options that make its need of memory smaller. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/config/train_options.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/plan/placement/placement.hpp"

namespace spillway::engine {

/// What a remedy changes.
enum class RemedyKind : std::uint8_t {
  state_home,
  state_format,
  batches,
  checkpointing,
  activations,
  sums,
  residency,
  parts
};

struct Remedy {
  std::string what;              ///< as the user is told
  config::TrainOptions options;  ///< with the change
};

/// Whether the second change would take back what the first one did.
[[nodiscard]] bool exclude_each_other(RemedyKind first, RemedyKind second);

/// Changes of one kind, the smallest first: each needs less than the one before, so the first that
/// fits stands for all.
struct RemedyFamily {
  RemedyKind kind;
  std::vector<Remedy> remedies;
};

/// Returns the families that help where `tier` is short; some may be empty.
[[nodiscard]] std::vector<RemedyFamily> usual_remedies(const config::TrainOptions& options,
                                                       plan::Tier tier);
/// Returns, where nothing else fits on the device, layers in parts, which round differently.
[[nodiscard]] RemedyFamily layers_in_parts(const model::ModelConfig& config,
                                           const config::TrainOptions& options);

}  // namespace spillway::engine
