#include "runtime/engine/run/claim.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "nvme_swap/committed_tiles.hpp"
#include "nvme_swap/format.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/log.hpp"
#include "runtime/engine/run/contents.hpp"
#include "runtime/engine/run/copies.hpp"
#include "runtime/engine/run/kept_checkpoints.hpp"

namespace spillway::engine {
namespace {

namespace fs = std::filesystem;

/// A killed process keeps its locks until its memory is gone.
constexpr std::chrono::seconds kLockPatience{10};

/// The absolute path without links; of a directory that may be missing.
std::string place(const fs::path& path) { return fs::weakly_canonical(path).string(); }

std::string places(const std::vector<fs::path>& paths) {
  std::vector<std::string> texts;
  texts.reserve(paths.size());
  for (const fs::path& path : paths) texts.push_back(place(path));
  return fmt::format("{}", fmt::join(texts, ", "));
}

bool same_places(const std::vector<fs::path>& a, const std::vector<fs::path>& b) {
  return std::ranges::equal(a, b, {}, place, place);
}

nvme_swap::StoreOptions store_of(const std::vector<fs::path>& directories, const RunId& owner) {
  nvme_swap::StoreOptions options;
  options.directories = directories;
  options.owner = owner;
  return options;
}

void refuse_foreign(const RunDirectory& run) {
  if (const auto foreign = foreign_entry(run.root())) {
    static_cast<void>(holds_run(run));  // one without a manifest has a better message
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} is not a run: it holds {}, which no run has written; choose another "
                    "--run",
                    run.root().string(), foreign->string()));
  }
}

void refuse_kept(const RunDirectory& run) {
  check(!run.read_manifest().kept, ErrorCode::invalid_argument,
        fmt::format("{} is a kept checkpoint, which is never trained on; start a new run from it "
                    "with --from",
                    run.root().string()));
}

}  // namespace

RunClaim::RunClaim(Request request)
    : request_(std::move(request)), run_(rank_directory(request_.run, request_.part.rank)) {
  for (const fs::path& directory : request_.nvme) {
    check(fs::is_directory(directory), ErrorCode::invalid_argument,
          fmt::format("--nvme {} is not a directory; mount its drive or make it",
                      directory.string()));
  }
  // A directory that is nobody's to train in is not even locked.
  const auto refuse = [this] { run_.exists() ? refuse_kept(run_) : refuse_foreign(run_); };
  refuse();
  lock_.emplace(run_.root(), kLockPatience, request_.made);
  run_ = RunDirectory(lock_->root());
  request_.run = fs::canonical(request_.run);
  refuse();  // whoever had the lock may have made something else of it
  manifest_path_ = run_.manifest();
  config_path_ = run_.config();
  if (run_.exists()) read_run();
  if (request_.part.rank == 0 && found_.state != Found::State::committed) refuse_rank_beyond();
}

/// The folder of a rank beyond would pass for a part of the run that begins.
void RunClaim::refuse_rank_beyond() const {
  const auto beyond = rank_beyond(request_.run, request_.part.ranks);
  check(!beyond.has_value(), ErrorCode::invalid_argument,
        fmt::format("{} is of an earlier run and has a committed step, and a run of {} rank(s) "
                    "begins here; choose another --run, or move it away (remove it if nobody needs "
                    "it)",
                    beyond.value_or("").string(), request_.part.ranks));
}

RunClaim::~RunClaim() {
  if (!begun_ || kept_) return;
  // The manifest goes first: without it nothing else here is taken for a run.
  for (const fs::path& path : {run_.manifest(), run_.config(), run_.metrics(), run_.plan()}) {
    std::error_code failed;
    fs::remove(path, failed);
    if (failed) log_warning("remove {}: {}", path.string(), failed.message());
  }
}

void RunClaim::read_run() {
  RunDirectory::Files files = run_.read();
  manifest_ = std::move(files.manifest);
  // Some of many ranks may have made a commit that others have not.
  const bool alone = request_.part.ranks == 1;
  if (alone && manifest_.committed) check_resumed();
  find_state();
  const nvme_swap::StoreOptions store = store_of(state_directories(), manifest_.state_id);
  const bool fresh = !manifest_.committed &&
                     nvme_swap::TileStore::content(store) == nvme_swap::StoreContent::uncommitted;
  if (!fresh) {
    // The swap files were whole before the manifest was written: whatever they lack now is lost.
    const nvme_swap::CommittedTiles tiles(store);
    if (alone) check_resumed();
    check_part();
    found_ = {.state = Found::State::committed,
              .step = tiles.commit().step.value(),
              .commits = tiles.generation()};
  }
  tell_copy_from_move();
  check_kept_checkpoints();
  found_.job = request_.part.rank == 0 ? manifest_.id : manifest_.job;
  found_.renamed = manifest_.renamed.value_or(RunId{});
  if (fresh) {
    found_.state = Found::State::uncommitted;
    replaced_ = manifest_;
    return;
  }
  recorded_ = std::move(files.config);
  changed_ = changed_ || !manifest_.committed;
  manifest_.committed = true;
}

void RunClaim::check_resumed() const {
  check(request_.resume, ErrorCode::invalid_argument,
        fmt::format("{} holds a run with a committed step; continue it with --resume or choose "
                    "another --run",
                    run_.root().string()));
}

bool RunClaim::reaches(StepIndex step) const {
  nvme_swap::CommittedTiles tiles(store_of(state_directories(), manifest_.state_id));
  try {
    tiles.take(step);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::corrupt_data) throw;
    return false;
  }
  return true;
}

void RunClaim::check_part() const {
  const RankPart& now = request_.part;
  const std::string remedy = fmt::format(
      "resume with the ranks and the stage that the run began with, or go on from it in a new one: "
      "\"spillway train ... --from {} --run NEW\", without --resume",
      request_.run.string());
  check(manifest_.part.ranks == now.ranks, ErrorCode::not_supported,
        fmt::format("{} was trained by {} rank(s), and this job has {}; {}", run_.root().string(),
                    manifest_.part.ranks, now.ranks, remedy));
  check(
      manifest_.part == now, ErrorCode::invalid_argument,
      fmt::format("{} is of rank {} with another zero_optimization.stage, and this is rank {}; {}",
                  run_.root().string(), manifest_.part.rank, now.rank, remedy));
}

void RunClaim::begin_again() {
  if (!recorded_) return;
  replaced_ = manifest_;
  recorded_.reset();
  changed_ = false;
}

/// Returns where the swap files of the state are among `named`, in their order; nothing if one is
/// missing. One of many ranks has them in some of the directories, and a rank alone in all.
std::vector<fs::path> RunClaim::files_in(const std::vector<fs::path>& named) const {
  const std::size_t files = manifest_.state.size();
  if (request_.part.ranks == 1 && named.size() != files) return {};
  std::vector<fs::path> found;
  for (std::size_t i = 0; i < files; ++i) {
    const auto holds = [i](const fs::path& directory) {
      return fs::exists(nvme_swap::swap_file_path(directory, "tiles", i));
    };
    const auto place = std::ranges::find_if(named, holds);
    if (place == named.end()) return {};
    found.push_back(*place);
  }
  return found;
}

/// A run's state lies where its manifest says, or where its drive is mounted now.
void RunClaim::find_state() {
  const std::vector<fs::path> there = state_directories();
  std::vector<fs::path> named;
  named.reserve(request_.nvme.size());
  for (const fs::path& directory : request_.nvme) {
    named.push_back(directory / to_text(manifest_.state_id));
  }
  const std::vector<fs::path> now = files_in(named);
  const bool elsewhere = !named.empty() && !same_places(named, there) && !same_places(now, there);
  if (elsewhere && !now.empty()) {
    notes_.push_back(
        fmt::format("the run's state is now in {}, no longer in {}", places(now), places(there)));
    manifest_.state.clear();
    for (const fs::path& path : now) manifest_.state.push_back(run_.in_manifest(path));
    changed_ = true;
    return;
  }
  check(
      !elsewhere || !manifest_.committed, ErrorCode::invalid_argument,
      fmt::format("the state of {} lies in {}, and {} holds none of it; leave out --nvme, or name "
                  "the directories that it was moved to",
                  run_.root().string(), places(there), places(named)));
}

void RunClaim::tell_copy_from_move() {
  check_folder_of_rank(run_, RunDirectory(request_.run), request_.part.rank);
  if (const auto original = original_of(run_, manifest_)) {
    const bool apart =
        manifest_.holds_its_state() && !share_folders(run_, manifest_, RunDirectory(*original));
    check(apart, ErrorCode::invalid_argument,
          fmt::format("{} is a copy of {}, and both would train the same state in {}; train {}, or "
                      "start a new run from it with --from",
                      run_.root().string(), original->string(), places(state_directories()),
                      original->string()));
    manifest_.earlier_ids.push_back(std::exchange(manifest_.id, random_run_id()));
    if (request_.part.ranks > 1) manifest_.renamed = manifest_.earlier_ids.back();
    notes_.push_back(fmt::format("a copy of the run in {}: from here on it is run {}",
                                 original->string(), to_text(manifest_.id)));
    changed_ = true;
  } else if (manifest_.directory != run_.root()) {
    notes_.push_back(fmt::format("the run was in {} before", manifest_.directory.string()));
    changed_ = true;
  }
  manifest_.directory = run_.root();
}

/// Checkpoints of another run would pass as this run's, and take the place of its own.
void RunClaim::check_kept_checkpoints() const {
  for (const RunDirectory& checkpoint : KeptCheckpoints::in(run_)) {
    const RunId id = checkpoint.read_manifest().id;
    check(manifest_.has_been(id), ErrorCode::invalid_argument,
          fmt::format("{} is of run {}, not of {} in {}; move it out of the run",
                      checkpoint.root().string(), to_text(id), to_text(manifest_.id),
                      run_.root().string()));
  }
}

std::vector<fs::path> RunClaim::or_own_state(const std::vector<fs::path>& nvme) const {
  return nvme.empty() ? std::vector{run_.state()} : nvme;
}

/// Nothing of it was ever committed, so nothing is lost. Kept checkpoints are committed steps.
void RunClaim::remove_uncommitted_run() {
  const std::vector<RunDirectory> kept = KeptCheckpoints::in(run_);
  check(kept.empty(), ErrorCode::invalid_argument,
        fmt::format("{} keeps checkpoints of a run whose own state has no committed step: go on "
                    "from the last one with --from {} in a new --run, or move {} away",
                    run_.root().string(), kept.empty() ? "" : kept.back().root().string(),
                    run_.checkpoints().string()));
  const auto directories = run_.state_directories(*replaced_);
  for (const fs::path& folder : directories) {
    check(!is_claimed(folder), ErrorCode::busy,
          fmt::format("{} is in use by another process; wait for it to end", folder.string()));
  }
  remove_file(run_.manifest());
  synchronize_directory(run_.root());
  for (const fs::path& path :
       {run_.config(), run_.metrics(), run_.plan(), run_.trace(), run_.notes()}) {
    remove_file(path);
  }
  fs::remove_all(run_.checkpoints());
  for (const fs::path& folder : directories) {
    if (folder.filename() == to_text(replaced_->state_id)) fs::remove_all(folder);
  }
}

void RunClaim::prepare_state(const std::vector<fs::path>& nvme) {
  remove_temporaries(run_.root());
  if (recorded_) return remove_scratch(state_directories(), manifest_.state_id);
  if (request_.resume && request_.part.rank == 0) {
    notes_.push_back(fmt::format("{} has no committed step to go on from: a new run begins there",
                                 run_.root().string()));
  }
  if (replaced_) remove_uncommitted_run();
  // A start that was killed may have had other ones of the directories.
  for (std::string& line : remove_left_over(or_own_state(request_.nvme), run_.root())) {
    notes_.push_back(std::move(line));
  }
  remove_file(run_.config());
  begun_ = true;
  manifest_ = {.id = random_run_id(), .directory = run_.root(), .part = request_.part};
  manifest_.state_id = manifest_.id;
  folders_.make(or_own_state(nvme), manifest_.id, run_.root());
  for (const fs::path& folder : folders_.paths()) {
    manifest_.state.push_back(run_.in_manifest(folder));
  }
}

void RunClaim::join(const RunId& job) {
  if (request_.part.rank == 0 || manifest_.job == job) return;
  manifest_.job = job;
  changed_ = true;
}

void RunClaim::all_recorded() {
  if (!std::exchange(manifest_.renamed, std::nullopt)) return;
  run_.write_manifest(manifest_);
}

void RunClaim::record(RunConfig& config) {
  config.id = manifest_.id;
  if (!recorded_) {
    run_.write_config(config);
    run_.write_manifest(manifest_);
    return;
  }
  if (changed_) run_.write_manifest(manifest_);
  // A copy that was killed between the two has the id of its original in its configuration. Data
  // that was moved is known by its new stamp from now on.
  if (recorded_->id != manifest_.id || recorded_->identity.stamp != config.identity.stamp) {
    recorded_->id = manifest_.id;
    recorded_->identity.stamp = config.identity.stamp;
    run_.write_config(*recorded_);
  }
  if (!changed_) return;
  const std::vector<fs::path> folders = state_directories();
  for (const fs::path& folder : folders) {
    write_mark(folder, {.run = run_.root(), .folders = folders});
  }
}

void RunClaim::keep() {
  kept_ = true;
  folders_.keep();
  lock_->keep();
}

void RunClaim::note_commit() {
  if (manifest_.committed) return;
  manifest_.committed = true;
  run_.write_manifest(manifest_);
}

void RunClaim::check_present() const {
  const auto lost = [&](const fs::path& path) {
    throw Error(
        ErrorCode::io_error,
        fmt::format("{} is gone: {} was moved, removed or replaced while it was trained, and "
                    "what was in it is lost to this process; its state was in {}",
                    path.string(), run_.root().string(), places(state_directories())));
  };
  if (!lock_->still_there()) lost(run_.lock());
  if (!is_there(manifest_path_)) lost(manifest_path_);
  if (!is_there(config_path_)) lost(config_path_);
}

std::vector<std::string> RunClaim::take_notes() { return std::exchange(notes_, {}); }

}  // namespace spillway::engine
