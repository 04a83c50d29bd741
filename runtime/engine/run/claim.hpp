// RunClaim: how a process becomes the one that trains a run. It locks the run directory before
// anything else is written there, tells a new run from one that goes on, from a moved one and from
// a copy, and finds the state that belongs to it. A new run's claim takes back everything that it
// has made unless it is kept: a start that fails leaves nothing behind. Control thread only.
//
// The order of a new run: lock, folders for the state, swap files, config.json, manifest.json. So a
// manifest says that the swap files are whole, and a run whose swap files are missing, blank or
// another's has lost its state: that is refused, whatever else is known.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/run/directory.hpp"
#include "runtime/engine/run/lock.hpp"
#include "runtime/engine/run/state_folders.hpp"

namespace spillway::engine {

class RunClaim {
 public:
  struct Request {
    std::filesystem::path run;
    bool resume = false;
    /// Directories for the state; empty: RUN/state. One of many ranks may have a part of them.
    std::vector<std::filesystem::path> nvme{};
    RankPart part{};  ///< `run` is the job's; this rank claims its own
    /// Number of directories that rank 0 has made to claim the job's: that one and those above it.
    std::uint64_t made = 0;
  };
  /// Claims the run. Throws `Error{invalid_argument}` for a directory that holds something else,
  /// for a run of one rank with a committed step without `resume`, for state that is not where
  /// `nvme` says; `Error{busy}` while another process trains the run; `Error{corrupt_data}` if its
  /// state is lost. Nothing has been changed then.
  explicit RunClaim(Request request);
  RunClaim(const RunClaim&) = delete;
  RunClaim& operator=(const RunClaim&) = delete;
  ~RunClaim();

  [[nodiscard]] const RunDirectory& run() const { return run_; }
  /// Number of directories that the claim has made: the run's and those above it.
  [[nodiscard]] std::uint64_t made() const { return lock_->made(); }
  /// Returns the directory of the job, which is that of rank 0.
  [[nodiscard]] const std::filesystem::path& job() const { return request_.run; }
  /// Whether the run has a committed step, with which it goes on.
  [[nodiscard]] bool resumes() const { return recorded_.has_value(); }
  /// Returns the recorded configuration of a run that goes on.
  [[nodiscard]] const RunConfig& recorded() const { return *recorded_; }
  /// What the claim has found, in the form that ranks exchange.
  struct Found {
    enum class State : std::uint64_t { nothing, uncommitted, committed } state = State::nothing;
    std::uint64_t step = 0;     ///< the last committed one
    std::uint64_t commits = 0;  ///< made since the state was
    RunId job{};                ///< whose rank this is: of rank 0, its own id
    RunId renamed{};            ///< of rank 0: what others may still name
  };
  [[nodiscard]] const Found& found() const { return found_; }
  /// Whether the state of a run that goes on is, or can go back to, that committed step.
  [[nodiscard]] bool reaches(StepIndex step) const;
  /// Throws `Error{invalid_argument}` for a run with a committed step without `resume`.
  void check_resumed() const;
  /// Treats the run as one that has never committed, because some ranks lack its first commit.
  void begin_again();
  /// Makes the run one of the job whose rank 0 has this id.
  void join(const RunId& job);
  [[nodiscard]] const RunManifest& manifest() const { return manifest_; }
  [[nodiscard]] std::vector<std::filesystem::path> state_directories() const {
    return run_.state_directories(manifest_);
  }

  /// Makes room for a new run: removes what one that never committed has left in its place, and
  /// makes the folders of its state, in those of `nvme` that are this rank's. Of a run that goes
  /// on, removes the scratch files of a killed process.
  void prepare_state(const std::vector<std::filesystem::path>& nvme);
  /// Writes the files that say whose the store is, once it is open. Sets the configuration's id.
  void record(RunConfig& config);
  /// Forgets the id by which others knew rank 0 before. Call it once all ranks have recorded.
  void all_recorded();
  /// Keeps the files from here on.
  void keep();
  /// Notes durably, the first time, that a step is committed.
  void note_commit();
  /// Throws `Error{io_error}` if the run directory or its files have been removed or replaced.
  /// Allocates nothing if all is well.
  void check_present() const;
  /// Returns what the user should know of how the run was found; each note once.
  [[nodiscard]] std::vector<std::string> take_notes();

 private:
  void read_run();
  void refuse_rank_beyond() const;
  void find_state();
  void check_part() const;
  void tell_copy_from_move();
  void check_kept_checkpoints() const;
  void remove_uncommitted_run();
  [[nodiscard]] std::vector<std::filesystem::path> or_own_state(
      const std::vector<std::filesystem::path>& nvme) const;
  [[nodiscard]] std::vector<std::filesystem::path> files_in(
      const std::vector<std::filesystem::path>& named) const;

  Request request_;
  RunDirectory run_;
  std::optional<RunLock> lock_;
  std::filesystem::path manifest_path_, config_path_;
  StateFolders folders_;
  RunManifest manifest_;
  std::optional<RunManifest> replaced_;  ///< of a run that never committed, in whose place this is
  std::optional<RunConfig> recorded_;
  Found found_;
  bool changed_ = false;  ///< the manifest on disk says something else
  bool begun_ = false;    ///< a new run's files are being made
  bool kept_ = false;
  std::vector<std::string> notes_;
};

}  // namespace spillway::engine
