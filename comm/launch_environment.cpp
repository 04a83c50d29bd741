#include "comm/launch_environment.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <limits>

#include "runtime/base/error.hpp"

namespace spillway::comm {
namespace {

/// Names the variables of one launcher; null: it has none for that.
struct Launcher {
  const char* name;
  const char* mark;  ///< is set if and only if this launcher has started the process
  const char* rank;
  const char* ranks;
  const char* local_rank;
  const char* local_ranks;
  const char* host;
  const char* port;
};

/// Innermost first. In the script of a job, SLURM sets the rank too, but no step.
constexpr Launcher kLaunchers[] = {
    {"torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
     "MASTER_ADDR", "MASTER_PORT"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", nullptr, nullptr},
    {"mpiexec", "PMI_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", nullptr,
     nullptr},
    {"srun", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr, nullptr,
     nullptr},
    {"torchrun", "MASTER_ADDR", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
     "MASTER_ADDR", "MASTER_PORT"},
};

class Variables {
 public:
  Variables(const Launcher& launcher, const EnvironmentLookup& lookup)
      : launcher_(launcher), lookup_(lookup) {}

  [[nodiscard]] std::string text(const char* name) const {
    const char* const value = find(name);
    check(value != nullptr, ErrorCode::invalid_argument,
          fmt::format("{} has started this process and has not set {}; start it by a launcher, or "
                      "unset {}",
                      launcher_.name, name, launcher_.mark));
    return value;
  }

  /// Returns a number below `end`.
  [[nodiscard]] std::uint32_t number(const char* name, std::uint64_t end) const {
    const std::string value = text(name);
    std::uint32_t result = 0;
    const char* const last = value.data() + value.size();
    const auto [stopped, status] = std::from_chars(value.data(), last, result);
    check(status == std::errc() && stopped == last && result < end, ErrorCode::invalid_argument,
          fmt::format("{}={} is no number below {}; {} sets it, or unset {}", name, value, end,
                      launcher_.name, launcher_.mark));
    return result;
  }

  [[nodiscard]] bool has(const char* name) const {
    return name != nullptr && find(name) != nullptr;
  }

 private:
  [[nodiscard]] const char* find(const char* name) const { return lookup_(name); }

  const Launcher& launcher_;
  const EnvironmentLookup& lookup_;
};

}  // namespace

std::optional<LaunchEnvironment> read_launch_environment(const EnvironmentLookup& lookup) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  for (const Launcher& launcher : kLaunchers) {
    const Variables variables(launcher, lookup);
    if (!variables.has(launcher.mark)) continue;
    LaunchEnvironment result{.launcher = launcher.name};
    result.ranks = variables.number(launcher.ranks, kMost);
    check(result.ranks > 0, ErrorCode::invalid_argument,
          fmt::format("{}=0: a group has at least one rank", launcher.ranks));
    result.rank = Rank{variables.number(launcher.rank, result.ranks)};
    if (variables.has(launcher.local_ranks)) {
      result.local_ranks = variables.number(launcher.local_ranks, kMost);
    }
    if (variables.has(launcher.local_rank)) {
      result.local_rank =
          variables.number(launcher.local_rank, result.local_ranks.value_or(result.ranks));
    }
    if (launcher.host != nullptr) {
      result.host = variables.text(launcher.host);
      result.port = static_cast<std::uint16_t>(variables.number(launcher.port, 65536));
    }
    return result;
  }
  return std::nullopt;
}

}  // namespace spillway::comm
