// MachineTuning: what this machine does best, measured once and kept in a file, the machine
// profile: the software prefetch distance of each update kernel, of each filesystem the queue depth
// and transfer size, and the algorithms of a GPU's matrix products. The first two change no bit of
// any result; algorithms do, and a run records those that it takes. Control thread only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cpu_adam/adam.hpp"
#include "nvme_swap/calibration.hpp"
#include "nvme_swap/tile_store.hpp"
#include "runtime/model/cuda/gemm/gemm_choices.hpp"

namespace spillway::engine {

/// Tuning of each directory of a store.
using DriveTunings = std::vector<nvme_swap::DriveTuning>;

/// Sets in `options` the queue depth and transfer size that suit all drives.
void tune_store(const DriveTunings& drives, nvme_swap::StoreOptions& options);

/// Whether what is measured is kept for other runs.
enum class Keep : std::uint8_t { no, yes };

class MachineTuning {
 public:
  /// Reads `file`, if it is there; a damaged one counts as missing, with a note in the log. An
  /// empty path: nothing is kept.
  explicit MachineTuning(std::filesystem::path file);

  /// Reads the file again, to which another process may have added.
  void refresh();

  /// Returns the known distance for the kernel with that many threads, else the result of
  /// `measure`, which is known from then on if it is to be kept.
  std::size_t prefetch(const cpu_adam::Kernel& kernel, std::size_t threads,
                       const std::function<std::size_t()>& measure, Keep keep = Keep::yes);
  /// Returns the known tuning of the filesystem of `directory` under the engine, else the result of
  /// `measure`, likewise.
  nvme_swap::DriveTuning drive(const std::filesystem::path& directory, nvme_swap::EngineKind engine,
                               const std::function<nvme_swap::DriveTuning()>& measure,
                               Keep keep = Keep::yes);
  /// Returns the algorithms of products measured on any GPU that was in this machine.
  [[nodiscard]] const model::cuda::GemmChoices& products() const { return products_; }
  /// Keeps the algorithm in place of what was known of `key`.
  void keep_product(const std::string& key, const model::cuda::GemmAlgorithm& algorithm);
  /// Forgets everything but products, in the file as well once something is measured.
  void forget();

  [[nodiscard]] const std::filesystem::path& file() const { return file_; }

 private:
  void read();
  void write() const;

  std::filesystem::path file_;
  std::map<std::string, std::size_t> prefetch_;
  std::map<std::string, nvme_swap::DriveTuning> drives_;
  model::cuda::GemmChoices products_;
};

}  // namespace spillway::engine
