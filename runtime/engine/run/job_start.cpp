#include "runtime/engine/run/job_start.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "comm/handshake.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/json.hpp"
#include "runtime/config/options_table.hpp"
#include "runtime/model/model_config.hpp"

namespace spillway::engine {
namespace {

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
  const auto lacking = std::ranges::find(reaching, 0);
  if (lacking == reaching.end()) return;
  const auto ahead = static_cast<std::size_t>(lacking - reaching.begin());
  throw Error(
      ErrorCode::corrupt_data,
      fmt::format("rank {} has committed step {}, and rank {} step {}, from which it cannot go "
                  "back so far: {} is older than the rest of the run; put its newest state back, "
                  "or restore all ranks of one backup",
                  last, step, ahead, all[ahead].step, rank_directory(claim.job(), last).string()));
}

}  // namespace

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

}  // namespace spillway::engine
