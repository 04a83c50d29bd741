// What the updates of a run are made with: the kernel, the hyperparameters of each part of a block,
// and the scalars of the update that is pending.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu_adam/adam.hpp"
#include "cpu_adam/update.hpp"
#include "runtime/config/train_options.hpp"
#include "runtime/model/parameter_layout.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

/// The parameters of a block from the end of the part before up to `end`, an index in the block.
struct GroupPart {
  std::uint64_t end = 0;
  std::uint32_t group = 0;
};
/// Parts behind the last one have nothing. There are matrices and vectors, and in a tensor group
/// both of a rank's own and of what all ranks have.
using BlockGroups = std::array<GroupPart, 4>;

/// Groups of a native run's parameters: what decays, and what does not.
inline constexpr std::uint32_t kDecayed = 0;
inline constexpr std::uint32_t kPlain = 1;
inline constexpr std::size_t kNativeGroups = 2;

/// The scalars of the update that the next plan applies, if one is pending.
struct PendingUpdate {
  bool pending = false;
  std::vector<cpu_adam::UpdateScalars> groups;  ///< as BlockGroups counts them
  /// Per-block overrides of `groups`, used where parameters within a group differ: in whether they
  /// are updated, or how often they were. Empty: they do not differ.
  std::vector<std::vector<cpu_adam::ParameterGroup>> overrides{};
};

/// Returns what weight decay applies to of each block, and behind it the rest, padding included.
[[nodiscard]] std::vector<BlockGroups> decay_groups(const model::ModelLayout& layout,
                                                    const plan::Workload& workload,
                                                    config::DecayScope scope);

/// Returns the kernel of the run's updates.
[[nodiscard]] const cpu_adam::Kernel& update_kernel(const config::TrainOptions& options,
                                                    const plan::Workload& workload);

}  // namespace spillway::engine
