#include "runtime/engine/ranks/rank_agreement.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "comm/handshake.hpp"
#include "offload/cuda/cuda_device.hpp"
#include "runtime/base/elapsed.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/json.hpp"
#include "runtime/config/options_table.hpp"
#include "runtime/model/model_config.hpp"

namespace spillway::engine {
namespace {

/// What a rank gives in a measurement of the network: as much as is large against what starting
/// costs, if the network moves it in `kMeasuredSeconds`, and if there is room for all ranks' parts.
constexpr Bytes kFirstShard = 64_KiB;
constexpr Bytes kLargestShard = 4_MiB;
constexpr Bytes kAllShards = 64_MiB;
constexpr double kMeasuredSeconds = 0.2;
constexpr int kMeasurements = 3;

/// These say how a rank does its part and not what the job does.
constexpr std::array<std::string_view, 12> kOwn{"spillway.nvme",
                                                "spillway.io_engine",
                                                "spillway.threads",
                                                "spillway.compute_threads",
                                                "spillway.isa",
                                                "spillway.host_memory",
                                                "spillway.device_memory",
                                                "spillway.host_link_gbps",
                                                "spillway.disk_gbps",
                                                "spillway.timeout",
                                                "tensorboard.output_path",
                                                "csv_monitor.output_path"};

/// Where a rank computes.
struct Place {
  MachineName machine = machine_name();
  std::array<char, 32> gpu{};  ///< on the PCI bus; empty for the host

  bool operator==(const Place&) const = default;
};

void check_own_gpus(std::span<const Place> places) {
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const auto first = std::ranges::find(places, places[rank]);
    const auto other = static_cast<std::size_t>(first - places.begin());
    check(other == rank || places[rank].gpu[0] == 0, ErrorCode::invalid_argument,
          fmt::format("ranks {} and {} on {} have one GPU, {}, and each needs its own: start as "
                      "many ranks on a machine as it has GPUs, and if CUDA_VISIBLE_DEVICES is set, "
                      "let it show each rank its own or show all of them to every rank",
                      other, rank, places[rank].machine.data(), places[rank].gpu.data()));
  }
}

std::string settings_of(const RunConfig& config, const RunSources& sources) {
  std::string text =
      fmt::format("run directory: {}\nstart weights: {}\n", sources.run.string(), sources.weights);
  for (const config::Option& option : config::options_table()) {
    if (std::ranges::count(kOwn, option.path()) > 0) continue;
    const nlohmann::json value = config::value_of(option, config.options);
    // Each option has its line, so that those of two ranks stay side by side.
    text += fmt::format("{}: {}\n", option.path(), value.is_null() ? "not set" : value.dump());
  }
  text += fmt::format("fingerprint of the training tokens: {:016x}\n", config.identity.fingerprint);
  text += fmt::format("fingerprint of the validation tokens: {:016x}\n",
                      sources.validation_fingerprint);
  const nlohmann::json model = parse_json(
      model::to_config_json(config.model, config.options.compute), {.origin = "the model"});
  for (const auto& [key, value] : model.items()) {
    text += fmt::format("{} of the model: {}\n", key, value.dump());
  }
  return text;
}

/// Throws unless all runs that the ranks have found are of one job.
void check_one_job(std::span<const RunClaim::Found> all, const std::filesystem::path& job) {
  const auto is_there = [](const RunClaim::Found& found) {
    return found.state != RunClaim::Found::State::nothing;
  };
  const auto first = std::ranges::find_if(all, is_there);
  if (first == all.end()) return;
  const RunManifest leader{.id = first->job, .renamed = first->renamed};
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const RunId& other = all[rank].job;
    const bool same = !is_there(all[rank]) || leader.leads(other);
    const auto number = static_cast<std::size_t>(first - all.begin());
    check(same, ErrorCode::corrupt_data,
          fmt::format("{} is of another run than {}: they are of runs {} and {}; put back the "
                      "folder that belongs there",
                      rank_directory(job, rank).string(), rank_directory(job, number).string(),
                      to_text(other), to_text(first->job)));
  }
}

/// Throws unless every rank can go back to the step of rank `last`: before one of them does.
void check_all_reach(RankGroups& ranks, const RunClaim& claim, std::span<const RunClaim::Found> all,
                     std::size_t last) {
  const std::uint64_t step = all[last].step;
  const std::vector<char> reaching = ranks.gather(char{claim.reaches(StepIndex{step})});
  const auto ahead = std::ranges::find(reaching, 0) - reaching.begin();
  check(ahead == std::ssize(reaching), ErrorCode::corrupt_data,
        fmt::format("rank {} has committed step {}, and rank {} step {}, from which it cannot go "
                    "back so far: {} is older than the rest of the run; put its newest state back, "
                    "or restore all ranks of one backup",
                    last, step, ahead, all[static_cast<std::size_t>(ahead)].step,
                    rank_directory(claim.job(), last).string()));
}

/// Returns the seconds of an all_gather of shards of this size.
double seconds_of_gather(comm::Communicator& ranks, Bytes shard) {
  const std::vector<std::byte> mine(shard.value());
  std::vector<std::byte> all(shard.value() * ranks.ranks());
  ranks.barrier().wait();
  const auto begin = std::chrono::steady_clock::now();
  ranks.all_gather(mine, all).wait();
  return seconds_since(begin);
}

/// Returns the best rate of a few gathers, which take less than a second together unless even the
/// smallest are slow. Rank 0 says how large they are.
double network_rate(comm::Communicator& ranks) {
  constexpr std::uint64_t kGrowth = 8;
  const Bytes largest = std::min(kLargestShard, kAllShards / std::uint64_t{ranks.ranks()});
  Bytes shard = std::min(kFirstShard, largest);
  double best = 0;
  for (int left = kMeasurements; left > 0;) {
    const double seconds = seconds_of_gather(ranks, shard);
    const double sent = static_cast<double>(shard.value()) * (ranks.ranks() - 1);
    best = std::max(best, sent / seconds);
    bool grows = shard < largest && kGrowth * seconds < kMeasuredSeconds;
    ranks.broadcast(std::as_writable_bytes(std::span{&grows, 1}), Rank{}).wait();
    if (grows) {
      shard = std::min(shard * kGrowth, largest);
    } else {
      --left;
    }
  }
  return best;
}

}  // namespace

MachineName machine_name() {
  constexpr std::size_t kNumber = 36;  // the characters of a UUID
  MachineName name{};
  static_assert(HOST_NAME_MAX + 1 + kNumber <= name.size());
  ::gethostname(name.data(), HOST_NAME_MAX);
  std::ifstream("/proc/sys/kernel/random/boot_id").read(&name[HOST_NAME_MAX + 1], kNumber);
  return name;
}

std::uint64_t largest_of(RankGroups& ranks, std::uint64_t mine) {
  return std::ranges::max(ranks.gather(mine));
}

double seconds_of_job(RankGroups& ranks, double stretch, double seconds) {
  struct Said {
    double stretch, seconds;
  };
  const Said mine{.stretch = stretch, .seconds = seconds * stretch};
  return std::ranges::min(ranks.gather(mine), {}, &Said::stretch).seconds;
}

int gpu_of_rank(RankGroups& ranks, config::DeviceKind device) {
  Place mine;
  int index = 0;
  const std::vector<Place> others = ranks.gather(mine);
  if (device == config::DeviceKind::cuda) {
    const auto before = std::span(others).first(ranks.place().rank);
    const auto place = static_cast<int>(std::ranges::count(before, mine));
    index = place % std::max(offload::count_cuda_devices(), 1);
    const std::string bus = offload::query_cuda_device(index).pci_bus_id;
    std::ranges::copy_n(bus.begin(), std::ssize(bus.substr(0, mine.gpu.size() - 1)),
                        mine.gpu.begin());
  }
  check_own_gpus(ranks.gather(mine));
  return index;
}

void check_same_run(RankGroups& ranks, const RunConfig& config, const RunSources& sources) {
  if (ranks.alone()) return;
  comm::handshake(*ranks.host(RankGroups::Group::job), {.version = SPILLWAY_VERSION,
                                                        .ranks = ranks.place().grid.ranks(),
                                                        .settings = settings_of(config, sources)});
}

std::optional<StepIndex> agree_on_start(RankGroups& ranks, RunClaim& claim) {
  const std::vector<RunClaim::Found> all = ranks.gather(claim.found());
  check_one_job(all, claim.job());
  using State = RunClaim::Found::State;
  const auto goes_on = [](const RunClaim::Found& found) { return found.state == State::committed; };
  const auto first = std::ranges::max_element(all, {}, &RunClaim::Found::commits);
  if (!goes_on(*first)) return std::nullopt;
  if (std::ranges::all_of(all, goes_on)) {
    claim.check_resumed();
    const auto last = std::ranges::min_element(all, {}, &RunClaim::Found::step);
    check_all_reach(ranks, claim, all, static_cast<std::size_t>(last - all.begin()));
    return StepIndex{last->step};
  }
  // A rank that has never committed tells of all that they were cut off in their first commit, or
  // have since begun to make room for another start.
  const bool begun = std::ranges::count(all, State::uncommitted, &RunClaim::Found::state) > 0;
  const bool cut_off = begun && first->commits == 1;
  const auto lost = std::ranges::find_if_not(all, goes_on) - all.begin();
  check(cut_off, ErrorCode::corrupt_data,
        fmt::format("rank {} has no committed step in {}, and rank {} has step {}: its state is "
                    "lost; put its folder back, or start a new run",
                    lost, rank_directory(claim.job(), static_cast<std::size_t>(lost)).string(),
                    first - all.begin(), first->step));
  claim.begin_again();
  return std::nullopt;
}

void prepare_state(RankGroups& ranks, RunClaim& claim,
                   const std::vector<std::filesystem::path>& nvme) {
  if (ranks.alone()) return claim.prepare_state(nvme);
  // While a rank that has never committed is there, the others are known to be cut off.
  const bool cut_off = !claim.resumes() && claim.found().state == RunClaim::Found::State::committed;
  if (cut_off) claim.prepare_state(nvme);
  ranks.barrier();
  if (!cut_off) claim.prepare_state(nvme);
  claim.join(ranks.first(claim.manifest().id));
}

void record(RankGroups& ranks, RunClaim& claim, RunConfig& config) {
  if (ranks.alone()) return claim.record(config);
  if (ranks.leads()) claim.record(config);
  ranks.barrier();
  if (!ranks.leads()) claim.record(config);
  ranks.barrier();
  claim.all_recorded();
}

void check_same_step(RankGroups& ranks, const std::filesystem::path& from, StepIndex step) {
  const std::uint64_t first = ranks.first(step.value());
  check(step.value() == first, ErrorCode::busy,
        fmt::format("{} is being trained: this rank has taken its step {}, and rank 0 step {}; "
                    "interrupt it first, or take a checkpoint that it keeps (spillway.save_every)",
                    from.string(), step.value(), first));
}

plan::Budgets least(RankGroups& ranks, const plan::Budgets& mine) {
  plan::Budgets result = mine;
  for (const plan::Budgets& other : ranks.gather(mine)) {
    result.device = std::min(result.device, other.device);
    result.host = std::min(result.host, other.host);
    result.nvme = std::min(result.nvme, other.nvme);
  }
  return result;
}

plan::MachineProfile slowest(RankGroups& ranks, plan::MachineProfile mine) {
  using Group = RankGroups::Group;
  const auto measure = [&](Group group, double& rate) {
    if (ranks.host(group) != nullptr) rate = network_rate(*ranks.host(group));
  };
  measure(Group::job, mine.net);
  measure(Group::node, mine.net_node);
  measure(Group::tensor, mine.net_tensor);
  using Profile = plan::MachineProfile;
  constexpr double Profile::*kRates[] = {
      &Profile::gpu_flops,  &Profile::h2d,        &Profile::d2h,        &Profile::h2d_d2h_combined,
      &Profile::update,     &Profile::gpu_update, &Profile::net,        &Profile::net_node,
      &Profile::net_tensor, &Profile::nvme_read,  &Profile::nvme_write, &Profile::nvme_combined};
  Profile result = mine;
  for (const Profile& other : ranks.gather(mine)) {
    for (const auto rate : kRates) {
      // A rate of 0 was left to another rank to measure.
      const double theirs = other.*rate;
      if (theirs > 0) result.*rate = result.*rate > 0 ? std::min(result.*rate, theirs) : theirs;
    }
    result.op_overhead_seconds = std::max(result.op_overhead_seconds, other.op_overhead_seconds);
    result.cpu_shares_gpu = result.cpu_shares_gpu || other.cpu_shares_gpu;
  }
  return result;
}

}  // namespace spillway::engine
