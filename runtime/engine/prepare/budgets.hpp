// What a run may fill of device memory, host memory and disks: what the options allow, within what
// the machine and its cgroups have left. Any thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/memory_budget.hpp"
#include "runtime/config/train_options.hpp"
#include "runtime/engine/prepare/place.hpp"
#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

/// What the process takes from here on beside what a plan lists: code that oneDNN generates,
/// stacks, the list of operations; on a GPU, where no code is generated, the buffer through which
/// it copies what the driver does not pin (device/compute_device.cpp). Training GPT-2 in fp32 had
/// 36 MiB more in memory than its plan. What it has already, CUDA's context and libraries on a GPU,
/// is measured.
inline constexpr Bytes kProcessOverhead{std::uint64_t{64} << 20};

/// Bytes of `memory` that may still be allocated and listed in a plan.
[[nodiscard]] Bytes room_in(const MemoryBudget& memory);

/// Number of ranks of a machine, this one included, that share each thing it has only once.
struct Sharers {
  std::uint32_t memory = 1;
  std::uint32_t file_systems = 1;  ///< the most on one that holds state of this rank
  std::uint32_t disks = 1;         ///< likewise
};

/// Returns a rank's part of memory that `ranks` share.
[[nodiscard]] MemoryBudget per_rank(MemoryBudget memory, std::uint32_t ranks);
/// Returns a rank's part of the rates that one of `ranks`, alone, has measured of their disk.
[[nodiscard]] plan::MachineProfile per_rank(plan::MachineProfile profile, std::uint32_t ranks);

/// Returns the budgets that the options set; where they set none, what the system, cgroup and disks
/// have left for one of the sharers.
[[nodiscard]] plan::Budgets make_budgets(const config::TrainOptions& options,
                                         const std::filesystem::path& run,
                                         const plan::Workload& workload,
                                         const Sharers& sharers = {});

/// Returns the device's and the host's part. `free_device`: of a GPU with memory of its own.
/// Without one, both parts are of the same memory. Ways to share it are tried from most for the
/// device, which moves least; the first is taken in which the workload fits without the disk, else
/// with it.
[[nodiscard]] plan::Budgets share_memory(const config::TrainOptions& options,
                                         const plan::Workload& workload, const MemoryBudget& memory,
                                         std::optional<Bytes> free_device);

/// Returns " (of 300 MiB asked for; 400 MiB of memory, ...)" if the budget of host memory is less
/// than was asked for, or nothing was asked for; else empty.
[[nodiscard]] std::string why_this_budget(std::optional<Bytes> asked, Bytes budget);

/// What the options allow within what there is. Without a GPU, device and host are parts of one
/// memory, and `both` is the most that they take together. With a GPU, a size of host memory that
/// was asked for is taken at its word, within what the cgroups allow.
struct MemoryLimits {
  Bytes device;
  Bytes host;
  Bytes both;
};

[[nodiscard]] MemoryLimits memory_limits(const config::TrainOptions& options,
                                         const MemoryBudget& memory,
                                         std::optional<Bytes> free_device);

/// Returns the free memory of the options' device, if it has memory of its own.
[[nodiscard]] std::optional<Bytes> free_memory_of_device(const config::TrainOptions& options);

/// What is in memory at once, where there is only one way to lie there.
struct FixedNeeds {
  Bytes device;
  Bytes host;
};

/// Throws `Error{does_not_fit}` unless `needs` keep the limits; the error names the memory, the
/// bytes, the budget, what limits it and what would fit. `remedy`: what else would help, "use ...".
void check_fits(const FixedNeeds& needs, const config::TrainOptions& options,
                const MemoryBudget& memory, std::optional<Bytes> free_device,
                std::string_view remedy);

/// Returns the folders in which the run keeps its swap files: `options.nvme`, or RUN/state.
[[nodiscard]] std::vector<std::filesystem::path> state_directories(
    const config::TrainOptions& options, const std::filesystem::path& run);

}  // namespace spillway::engine
