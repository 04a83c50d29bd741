#include "runtime/engine/run/kept_checkpoints.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"
#include "runtime/engine/run/tokenizer.hpp"
#include "runtime/model/hf/tokenizer_files.hpp"

namespace spillway::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";

/// Returns the step that the name of a checkpoint's directory stands for; nothing for other names.
std::optional<std::uint64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::uint64_t step = 0;
  const char* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (parsed.ec != std::errc{} || parsed.ptr != end) return std::nullopt;
  return step;
}

/// Steps with a directory, complete or not, ascending.
std::vector<std::uint64_t> all_steps(const RunDirectory& run) {
  std::vector<std::uint64_t> steps;
  if (!fs::exists(run.checkpoints())) return steps;
  for (const fs::directory_entry& entry : fs::directory_iterator(run.checkpoints())) {
    if (const auto step = step_of(entry.path().filename().string())) steps.push_back(*step);
  }
  std::ranges::sort(steps);
  return steps;
}

/// Removes a checkpoint, its manifest first, so that it never looks complete. Of one that was moved
/// away and linked back, removes the link alone.
void remove(const RunDirectory& checkpoint) {
  const bool linked = fs::is_symlink(checkpoint.root());
  if (!linked && fs::remove(checkpoint.manifest())) synchronize_directory(checkpoint.root());
  fs::remove_all(checkpoint.root());
}

}  // namespace

RunDirectory KeptCheckpoints::at(const RunDirectory& run, std::uint64_t step) {
  return RunDirectory(run.checkpoints() / fmt::format("{}{}", kPrefix, step));
}

std::vector<std::uint64_t> KeptCheckpoints::steps(const RunDirectory& run) {
  std::vector<std::uint64_t> complete = all_steps(run);
  std::erase_if(complete, [&](std::uint64_t step) { return !at(run, step).exists(); });
  return complete;
}

std::vector<RunDirectory> KeptCheckpoints::in(const RunDirectory& run) {
  std::vector<RunDirectory> checkpoints;
  const std::vector<std::uint64_t> complete = steps(run);
  checkpoints.reserve(complete.size());
  for (const std::uint64_t step : complete) checkpoints.push_back(at(run, step));
  return checkpoints;
}

void KeptCheckpoints::check_space(const nvme_swap::StoreLayout& layout) const {
  if (options_.save_every == 0) return;
  Bytes one;
  for (const Bytes tile : layout.tiles) one += tile * options_.part.ranks;
  // The new one is complete before the oldest goes.
  const std::uint64_t most = options_.keep + std::uint64_t{1};
  const std::uint64_t there = std::min<std::uint64_t>(steps(run_).size(), most);
  const Bytes needed = one * (most - there);
  const Bytes free{fs::space(run_.root()).available};
  check(needed <= free, ErrorCode::does_not_fit,
        fmt::format("does not fit: {} checkpoints of {} need {} more in {}, which has {} free; "
                    "lower spillway.keep or free the space",
                    most, format_bytes(one), format_bytes(needed), run_.root().string(),
                    format_bytes(free)));
}

RunDirectory KeptCheckpoints::part_at(std::uint64_t step) const {
  return RunDirectory(rank_directory(at(run_, step).root(), options_.part.rank));
}

bool KeptCheckpoints::due(std::uint64_t step) {
  const std::uint64_t every = options_.save_every;
  if (every == 0 || step == 0 || step % every != 0 || started_ == step) return false;
  return ranks_.first(!at(run_, step).exists());
}

void KeptCheckpoints::start(Trainer& trainer) {
  const std::uint64_t step = trainer.state().step;
  const comm::AtWork removing(ranks_.host(RankGroups::Group::job));
  if (ranks_.leads()) remove(at(run_, step));
  ranks_.barrier();  // whose parts lie in what rank 0 has removed
  const RunDirectory part = part_at(step);
  MadeDirectories made;
  made.make(part.state());
  made.keep();
  nvme_swap::StoreOptions options;
  options.owner = options_.id;
  options.directories = {part.state()};
  options.slots = 1;
  trainer.cycle().commits().copy_next(options);
  started_ = step;
}

std::optional<KeptCheckpoints::Saved> KeptCheckpoints::finish(const Trainer& trainer,
                                                              const RunConfig& config) {
  if (!started_ || trainer.cycle().commits().copied_step() != started_) return std::nullopt;
  const std::uint64_t step = *std::exchange(started_, std::nullopt);
  const comm::AtWork closing(ranks_.host(RankGroups::Group::job));
  const RunDirectory part = part_at(step);
  const RunManifest manifest{.id = options_.id,
                             .state_id = options_.id,
                             .state = {part.in_manifest(part.state())},
                             .committed = true,
                             .directory = part.root(),
                             .kept = step,
                             .part = options_.part,
                             .job = options_.job};
  part.write_config(config);
  const bool first = ranks_.leads();
  if (!first) part.write_manifest(manifest);
  ranks_.barrier();  // the manifest of rank 0 says that the parts of all others are whole
  if (first) {
    model::copy_tokenizer_files(tokenizer_directory(run_.root()), part.root() / "tokenizer");
    part.write_manifest(manifest);
    remove_old();
  }
  return Saved{.step = step, .directory = at(run_, step).root()};
}

void KeptCheckpoints::remove_old() const {
  const std::vector<std::uint64_t> complete = steps(run_);
  for (const std::uint64_t step : all_steps(run_)) {
    const bool kept =
        std::ranges::count_if(complete, [&](auto s) { return s >= step; }) <= options_.keep;
    if (!kept || !at(run_, step).exists()) remove(at(run_, step));
  }
}

}  // namespace spillway::engine
