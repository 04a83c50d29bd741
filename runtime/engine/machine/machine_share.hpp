// Where a rank computes and keeps its state, on a machine that it may share with other ranks of the
// job: its cores, its drives, and how many others there are. Control thread only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/affinity.hpp"
#include "runtime/engine/prepare/budgets.hpp"
#include "runtime/engine/ranks/rank_groups.hpp"
#include "runtime/engine/ranks/shown_share.hpp"

namespace spillway::engine {

/// A rank's part of its machine.
struct MachineShare {
  Sharers sharers;
  std::uint32_t turn = 0;     ///< of this rank, among those that share a disk with it
  std::uint32_t turns = 1;    ///< of the job: every rank waits for so many
  CoreShare core_share;       ///< its cores are this rank's own, if there are any
  std::uint32_t threads = 1;  ///< that suit the rank's part of the machine
  std::vector<std::filesystem::path> directories;  ///< for its state
};

/// What a rank asks for, and says of itself.
struct ShareRequest {
  std::optional<std::string> gpu;                  ///< its PCI bus id
  std::optional<NodeIndex> gpu_node;               ///< what CUDA says, for when hwloc does not know
  std::vector<std::filesystem::path> directories;  ///< for state
  /// They may be shared out among the ranks; else each rank has state in all of its own.
  bool divides_directories = false;
};

/// Returns the part of this rank. Every rank calls it. Ranks that a launcher has given different
/// cores keep them; those that may run on the same ones share them out.
[[nodiscard]] MachineShare share_machine(RankGroups& ranks, const ShareRequest& request);

/// Returns the parts of all ranks, by rank, to show. Every rank calls it.
[[nodiscard]] std::vector<ShownShare> gather_shares(RankGroups& ranks, const ShownShare& mine);

}  // namespace spillway::engine
