// RunDirectory: the files of a run and what they say; docs/formats.md describes them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/run_id.hpp"
#include "runtime/config/train_options.hpp"
#include "runtime/engine/device/compute_device.hpp"
#include "runtime/engine/run/training_data.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

/// What RUN/config.json records: enough to resume, evaluate or export without any other file.
struct RunConfig {
  RunId id{};
  model::ModelConfig model;
  config::TrainOptions options;
  std::string data;         ///< the data directory, as given
  DataIdentity identity{};  ///< of the training tokens; resume compares the fingerprint
  DeviceRecord device{};    ///< where the run began
};

/// The rank, of how many, that a run directory belongs to. The directories of a job are RUN, that
/// of rank 0, and RUN/rank-0001, ...
struct RankPart {
  std::uint32_t ranks = 1;
  std::uint32_t rank = 0;
  plan::Sharding sharding = plan::Sharding::none;
  bool operator==(const RankPart&) const = default;
};

/// Returns the run directory of a rank of the job in `job`.
[[nodiscard]] std::filesystem::path rank_directory(const std::filesystem::path& job,
                                                   std::size_t rank);

/// What RUN/manifest.json says: who the run is and where its state lies. Written once the swap
/// files are whole, so that a manifest whose swap files are missing or blank has lost them.
struct RunManifest {
  RunId id{};
  std::vector<RunId> earlier_ids{};  ///< of the runs that it is a copy of, the last one last
  RunId state_id{};  ///< the owner that its swap files name: `id`, or an earlier one
  /// Directories of the swap files, in their order. Those below the run are relative to it, so that
  /// it can be moved.
  std::vector<std::filesystem::path> state{};
  bool committed = false;               ///< a step has been: without its state the run is damaged
  std::filesystem::path directory{};    ///< of the run when it was last trained
  std::optional<std::uint64_t> kept{};  ///< this is a kept checkpoint of that step
  RankPart part{};                      ///< whose state it is
  /// For a rank other than 0: the id of rank 0's run. Runs of earlier versions have none.
  RunId job{};
  /// Rank 0's id before, while others may still name it as their job.
  std::optional<RunId> renamed{};

  /// Whether `other` is the run's own id or an earlier one.
  [[nodiscard]] bool has_been(const RunId& other) const;
  /// Whether all swap files lie below the run.
  [[nodiscard]] bool holds_its_state() const;
  /// Whether a rank whose job is `named` belongs to this run, which is that of rank 0.
  [[nodiscard]] bool leads(const RunId& named) const;
};

class RunDirectory {
 public:
  explicit RunDirectory(std::filesystem::path root) : root_(std::move(root)) {}

  [[nodiscard]] const std::filesystem::path& root() const { return root_; }
  [[nodiscard]] std::filesystem::path config() const { return root_ / "config.json"; }
  [[nodiscard]] std::filesystem::path manifest() const { return root_ / "manifest.json"; }
  [[nodiscard]] std::filesystem::path metrics() const { return root_ / "metrics.jsonl"; }
  /// Returns what was planned when the run was last started, for `spillway report`.
  [[nodiscard]] std::filesystem::path plan() const { return root_ / "plan.json"; }
  [[nodiscard]] std::filesystem::path trace() const { return root_ / "trace.json"; }
  /// Returns what a rank that shows nothing has noted.
  [[nodiscard]] std::filesystem::path notes() const { return root_ / "notes.log"; }
  [[nodiscard]] std::filesystem::path lock() const { return root_ / "lock"; }
  [[nodiscard]] std::filesystem::path state() const { return root_ / "state"; }
  /// Returns the folder of kept checkpoints, each a run directory of its own.
  [[nodiscard]] std::filesystem::path checkpoints() const { return root_ / "checkpoints"; }

  void write_config(const RunConfig& config) const;
  /// Reads the configuration. Throws `Error{invalid_argument}` if this is not a run.
  [[nodiscard]] RunConfig read_config() const;
  /// The contents of both files. `read` throws `Error{corrupt_data}` if they are of different runs.
  struct Files {
    RunManifest manifest;
    RunConfig config;
  };
  [[nodiscard]] Files read() const;

  void write_manifest(const RunManifest& manifest) const;
  /// Reads the manifest. Throws `Error{corrupt_data}` unless it is what was written.
  [[nodiscard]] RunManifest read_manifest() const;
  /// Returns the manifest of another rank of this job, which is of rank 0 and has `first`. Throws
  /// `Error{corrupt_data}` that names both directories if it is missing or of another job or rank.
  [[nodiscard]] RunManifest read_rank(const RunManifest& first, std::uint32_t rank) const;
  /// Returns `directory` as a manifest names it: relative to the run if it lies below.
  [[nodiscard]] std::filesystem::path in_manifest(const std::filesystem::path& directory) const;
  /// Returns the directories of the swap files; relative ones of the manifest lie below the run.
  [[nodiscard]] std::vector<std::filesystem::path> state_directories(
      const RunManifest& manifest) const;
  [[nodiscard]] bool exists() const;

 private:
  std::filesystem::path root_;
};

/// Returns every option of the mathematics in which `now` differs from what the run recorded, one
/// text each. Placement and effort are not among them.
[[nodiscard]] std::vector<std::string> differences_in_mathematics(const RunConfig& recorded,
                                                                  const RunConfig& now);
/// Throws `Error{invalid_argument}` that names the differences if there are any.
void check_same_mathematics(const RunConfig& recorded, const RunConfig& now);

}  // namespace spillway::engine
