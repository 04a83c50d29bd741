#include "comm/launch_environment.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>

#include "comm/communicator.hpp"
#include "comm/tcp/wire.hpp"
#include "runtime/base/error.hpp"

namespace spillway::comm {
namespace {

/// Variables of one launcher; null where it has none.
struct Launcher {
  const char* name;
  const char* backend;
  const char* mark;  ///< set if and only if this launcher has started the process
  const char* rank;
  const char* ranks;
  const char* local_rank;
  const char* local_ranks;
  const char* job;
};

constexpr const char* kHost = "MASTER_ADDR";
constexpr const char* kPort = "MASTER_PORT";
constexpr const char* kOwnPort = "SPILLWAY_MASTER_PORT";
constexpr const char* kOwnJob = "SPILLWAY_JOB";
constexpr const char* kOwnSecret = "SPILLWAY_JOB_SECRET";
constexpr const char* kTimeout = "SPILLWAY_TIMEOUT";
constexpr const char* kPmiRank = "PMI_RANK";
constexpr const char* kRank = "RANK";
constexpr const char* kRanks = "WORLD_SIZE";
constexpr std::size_t kLongestJobName = sizeof(detail::Hello::job) - 1;

/// Innermost first. In the script of a job, SLURM sets the rank too, but no step.
constexpr Launcher kLaunchers[] = {
    {"torchrun", "tcp", "TORCHELASTIC_RUN_ID", kRank, kRanks, "LOCAL_RANK", "LOCAL_WORLD_SIZE",
     "TORCHELASTIC_RUN_ID"},
    {"mpirun", "mpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", nullptr},
    {"mpiexec", "mpi", kPmiRank, kPmiRank, "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
     nullptr},
    {"srun", "tcp", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr,
     "SLURM_JOB_ID"},
    {"torchrun", "tcp", kHost, kRank, kRanks, "LOCAL_RANK", "LOCAL_WORLD_SIZE", nullptr},
};

class Variables {
 public:
  Variables(const Launcher& launcher, const EnvironmentLookup& lookup)
      : launcher_(launcher), lookup_(lookup) {}

  [[nodiscard]] std::string text(const char* name) const {
    const char* const value = find(name);
    check(value != nullptr, ErrorCode::invalid_argument,
          fmt::format("{} says that this process is a rank of a job, and {} is not set; set it, "
                      "start the process by a launcher, or unset {}",
                      setting(launcher_.mark), name, launcher_.mark));
    return value;
  }

  /// Returns a number below `end`.
  [[nodiscard]] std::uint32_t number(const char* name, std::uint64_t end) const {
    const std::string value = text(name);
    std::uint32_t result = 0;
    const char* const last = value.data() + value.size();
    const auto [stopped, status] = std::from_chars(value.data(), last, result);
    check(status == std::errc() && stopped == last && result < end, ErrorCode::invalid_argument,
          fmt::format("{} is no number below {}, and {} says that this process is a rank of a job; "
                      "set {} to one, or unset {}",
                      setting(name), end, setting(launcher_.mark), name, launcher_.mark));
    return result;
  }

  [[nodiscard]] bool has(const char* name) const {
    return name != nullptr && find(name) != nullptr;
  }

  /// Returns a variable that is set, with its value.
  [[nodiscard]] std::string setting(const char* name) const {
    return fmt::format("{}={}", name, find(name));
  }

 private:
  [[nodiscard]] const char* find(const char* name) const { return lookup_(name); }

  const Launcher& launcher_;
  const EnvironmentLookup& lookup_;
};

/// Whether the variables of mpiexec come from srun with --mpi=pmi2. An mpiexec in a step of SLURM
/// counts its own ranks.
bool srun_has_set_pmi(const EnvironmentLookup& lookup) {
  const auto same = [&](const char* one, const char* other) {
    const char* const value = lookup(one);
    const char* const expected = lookup(other);
    return value != nullptr && expected != nullptr && std::strcmp(value, expected) == 0;
  };
  return lookup("SLURM_STEP_ID") != nullptr && same(kPmiRank, "SLURM_PROCID") &&
         same("PMI_SIZE", "SLURM_NTASKS");
}

/// Returns the first host of a list as SLURM writes it: "a1" of "a[1-3,7],b" and of "a1,b".
std::string first_host(const std::string& list) {
  std::string name = list.substr(0, list.find_first_of("[,"));
  if (name.size() == list.size() || list[name.size()] == ',') return name;
  const std::size_t number = name.size() + 1;
  return name + list.substr(number, list.find_first_of("-,]", number) - number);
}

/// Throws unless RANK and WORLD_SIZE, where they are set, say what the launcher says.
void check_agreed(const Launcher& launcher, const LaunchEnvironment& found,
                  const EnvironmentLookup& lookup) {
  const auto check_number = [&](const char* name, std::uint32_t expected) {
    const char* const value = lookup(name);
    check(value == nullptr || value == std::to_string(expected), ErrorCode::invalid_argument,
          fmt::format("{} make this process rank {} of {}, and {}={} says otherwise; unset {}, or "
                      "{}",
                      found.variables, found.rank.value(), found.ranks, name, value ? value : "",
                      name, launcher.mark));
  };
  check_number(kRanks, found.ranks);
  check_number(kRank, found.rank.value());
}

/// Throws if this process is told to be one of several ranks and not where they meet.
void check_alone(const EnvironmentLookup& lookup) {
  const char* const ranks = lookup(kRanks);
  check(ranks == nullptr || std::strcmp(ranks, "1") == 0, ErrorCode::invalid_argument,
        fmt::format("{}={} says that there are several ranks, and {} is not set, where they meet; "
                    "set it, with {} and {}, or unset {}",
                    kRanks, ranks == nullptr ? "" : ranks, kHost, kPort, kRank, kRanks));
}

/// torchrun itself takes connections at MASTER_PORT, so ranks meet at the next one.
std::uint16_t next_port(const Variables& variables) {
  const std::uint32_t port = variables.number(kPort, 65535);
  return static_cast<std::uint16_t>(port + 1);
}

/// A port below those that systems hand out, which another job of the machine hardly has.
std::uint16_t port_of_job(std::uint32_t job) {
  constexpr std::uint32_t kFirst = 15'000;
  constexpr std::uint32_t kPorts = 15'000;
  return static_cast<std::uint16_t>(kFirst + job % kPorts);
}

void read_place(const Launcher& launcher, const Variables& variables, LaunchEnvironment& result) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  const bool slurm = result.launcher == "srun";
  result.host = slurm && !variables.has(kHost) ? first_host(variables.text("SLURM_STEP_NODELIST"))
                                               : variables.text(kHost);
  check(!result.host.empty(), ErrorCode::invalid_argument,
        fmt::format("{} is empty; set it to the host of rank 0", kHost));
  // Then nobody else can reach the ranks.
  if (result.local_ranks == result.ranks) result.host = "localhost";
  if (variables.has(kOwnPort)) {
    result.port = static_cast<std::uint16_t>(variables.number(kOwnPort, 65536));
    check(result.port != 0, ErrorCode::invalid_argument,
          fmt::format("{} is 0, at which nobody could find rank 0; choose a port", kOwnPort));
  } else if (slurm && !variables.has(kPort)) {
    result.port = port_of_job(variables.number(launcher.job, kMost));
  } else {
    result.port = next_port(variables);
  }
  if (launcher.job != nullptr) result.job = variables.text(launcher.job);
  if (slurm) result.job = fmt::format("{}.{}", result.job, variables.text(launcher.mark));
  if (variables.has(kOwnJob)) result.job = variables.text(kOwnJob);
  check(result.job.size() <= kLongestJobName, ErrorCode::invalid_argument,
        fmt::format("the name of the job has {} characters, and ranks tell each other {}: \"{}\"; "
                    "set {} to a shorter one",
                    result.job.size(), kLongestJobName, result.job, kOwnJob));
  if (variables.has(kOwnSecret)) {
    result.secret = variables.text(kOwnSecret);
    check(
        !result.secret.empty(), ErrorCode::invalid_argument,
        fmt::format("{} is empty; set it to the same text on all ranks, or unset it", kOwnSecret));
  }
}

}  // namespace

std::optional<LaunchEnvironment> read_launch_environment(const EnvironmentLookup& lookup) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  for (const Launcher& launcher : kLaunchers) {
    const Variables variables(launcher, lookup);
    if (!variables.has(launcher.mark)) continue;
    if (std::string_view(launcher.mark) == kPmiRank && srun_has_set_pmi(lookup)) continue;
    LaunchEnvironment result{.launcher = launcher.name, .backend = launcher.backend};
    result.ranks = variables.number(launcher.ranks, kMost);
    check(result.ranks > 0, ErrorCode::invalid_argument,
          fmt::format("{}=0: a group has at least one rank", launcher.ranks));
    result.rank = Rank{variables.number(launcher.rank, result.ranks)};
    result.variables = fmt::format("{} and {}", variables.setting(launcher.rank),
                                   variables.setting(launcher.ranks));
    check_agreed(launcher, result, lookup);
    if (variables.has(launcher.local_ranks)) {
      result.local_ranks = variables.number(launcher.local_ranks, kMost);
    }
    if (variables.has(launcher.local_rank)) {
      result.local_rank =
          variables.number(launcher.local_rank, result.local_ranks.value_or(result.ranks));
    }
    if (variables.has(kTimeout)) {
      result.timeout = variables.number(kTimeout, kMostTimeoutSeconds + 1);
      check(*result.timeout > 0, ErrorCode::invalid_argument,
            fmt::format("{} is 0; set it to the seconds that a rank may be late", kTimeout));
    }
    if (result.backend == "tcp") read_place(launcher, variables, result);
    const bool srun_offers_mpi = variables.has("PMIX_RANK") || variables.has(kPmiRank);
    if (result.launcher == "srun" && srun_offers_mpi) result.backend = "mpi";
    return result;
  }
  check_alone(lookup);
  return std::nullopt;
}

std::optional<LaunchEnvironment> read_meeting(const EnvironmentLookup& lookup) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  for (const Launcher& launcher : kLaunchers) {
    const Variables variables(launcher, lookup);
    if (std::string_view(launcher.backend) != "tcp" || !variables.has(launcher.mark)) continue;
    LaunchEnvironment result{.launcher = launcher.name, .backend = launcher.backend};
    try {
      result.rank = Rank{variables.number(launcher.rank, kMost)};
      result.ranks = variables.number(launcher.ranks, kMost);
      if (variables.has(launcher.local_ranks)) {
        result.local_ranks = variables.number(launcher.local_ranks, kMost);
      }
      read_place(launcher, variables, result);
      return result;
    } catch (const Error&) {  // the caller has an error of its own
      return std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace spillway::comm
