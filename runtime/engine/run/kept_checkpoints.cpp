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

/// The step that a directory name stands for, if it is one of ours.
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

/// From the first moment on it no longer looks like a checkpoint.
void remove(const RunDirectory& checkpoint) {
  if (fs::remove(checkpoint.manifest())) synchronize_directory(checkpoint.root());
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
  if (save_every_ == 0) return;
  Bytes one;
  for (const Bytes tile : layout.tiles) one += tile;
  // The new one is complete before the oldest goes.
  const std::uint64_t most = keep_ + std::uint64_t{1};
  const std::uint64_t there = std::min<std::uint64_t>(steps(run_).size(), most);
  const Bytes needed = one * (most - there);
  const Bytes free{fs::space(run_.root()).available};
  check(needed <= free, ErrorCode::does_not_fit,
        fmt::format("does not fit: {} checkpoints of {} need {} more in {}, which has {} free; "
                    "lower spillway.keep or free the space",
                    most, format_bytes(one), format_bytes(needed), run_.root().string(),
                    format_bytes(free)));
}

bool KeptCheckpoints::due(std::uint64_t step) const {
  return save_every_ > 0 && step > 0 && step % save_every_ == 0 && started_ != step &&
         !at(run_, step).exists();
}

void KeptCheckpoints::start(Trainer& trainer) {
  started_ = trainer.state().step;
  const RunDirectory checkpoint = at(run_, *started_);
  remove(checkpoint);
  MadeDirectories made;
  made.make(checkpoint.state());
  made.keep();
  nvme_swap::StoreOptions options;
  options.owner = id_;
  options.directories = {checkpoint.state()};
  options.slots = 1;
  trainer.copy_next(options);
}

std::optional<KeptCheckpoints::Saved> KeptCheckpoints::finish(const Trainer& trainer,
                                                              const RunConfig& config) {
  if (!started_ || trainer.copying()) return std::nullopt;
  const std::uint64_t step = *std::exchange(started_, std::nullopt);
  const RunDirectory checkpoint = at(run_, step);
  checkpoint.write_config(config);
  model::copy_tokenizer_files(tokenizer_directory(run_.root()), checkpoint.root() / "tokenizer");
  checkpoint.write_manifest({.id = id_,
                             .state_id = id_,
                             .state = {checkpoint.in_manifest(checkpoint.state())},
                             .committed = true,
                             .directory = checkpoint.root(),
                             .kept = step});
  remove_old();
  return Saved{.step = step, .directory = checkpoint.root()};
}

void KeptCheckpoints::remove_old() const {
  const std::vector<std::uint64_t> complete = steps(run_);
  for (const std::uint64_t step : all_steps(run_)) {
    const bool kept = std::ranges::count_if(complete, [&](auto s) { return s >= step; }) <= keep_;
    if (!kept || !at(run_, step).exists()) remove(at(run_, step));
  }
}

}  // namespace spillway::engine
