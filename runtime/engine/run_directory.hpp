// RunDirectory: the files of a run and what they say. design.md, "Files of a run".
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/compute_device.hpp"
#include "runtime/engine/train_options.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

/// What RUN/config.json records: enough to resume, evaluate or export without any other file.
struct RunConfig {
  model::ModelConfig model;
  TrainOptions options;
  std::string data;                    ///< the data directory, as given
  std::uint64_t data_fingerprint = 0;  ///< of the training tokens; resume compares it
  DeviceRecord device{};               ///< where the run began
};

class RunDirectory {
 public:
  explicit RunDirectory(std::filesystem::path root) : root_(std::move(root)) {}

  [[nodiscard]] const std::filesystem::path& root() const { return root_; }
  [[nodiscard]] std::filesystem::path config() const { return root_ / "config.json"; }
  [[nodiscard]] std::filesystem::path manifest() const { return root_ / "manifest.json"; }
  [[nodiscard]] std::filesystem::path metrics() const { return root_ / "metrics.jsonl"; }
  [[nodiscard]] std::filesystem::path trace() const { return root_ / "trace.json"; }
  [[nodiscard]] std::filesystem::path report() const { return root_ / "report.json"; }
  [[nodiscard]] std::filesystem::path state() const { return root_ / "state"; }
  /// Kept checkpoints, each a run directory of its own.
  [[nodiscard]] std::filesystem::path checkpoints() const { return root_ / "checkpoints"; }

  void write_config(const RunConfig& config) const;
  /// Throws `Error{invalid_argument}` if this is not a run.
  [[nodiscard]] RunConfig read_config() const;

  /// Where the swap files of the run are. Those below the run are named relative to it, so that a
  /// run can be moved. Written once, when the run is created.
  void write_manifest(const std::vector<std::filesystem::path>& state_directories) const;
  [[nodiscard]] std::vector<std::filesystem::path> read_manifest() const;
  [[nodiscard]] bool exists() const;

 private:
  std::filesystem::path root_;
};

/// Every option of the mathematics in which `now` differs from what the run recorded, one text
/// each. Placement and effort are not among them.
[[nodiscard]] std::vector<std::string> differences_in_mathematics(const RunConfig& recorded,
                                                                  const RunConfig& now);
/// Throws `Error{invalid_argument}` naming them if there are any.
void check_same_mathematics(const RunConfig& recorded, const RunConfig& now);

}  // namespace spillway::engine
