// What `train` is asked for.
#pragma once

#include <filesystem>
#include <optional>

#include "runtime/config/train_options.hpp"
#include "runtime/model/model_config.hpp"

namespace spillway::model {
class ParameterSource;
}
namespace spillway::comm {
class Communicator;
}

namespace spillway::engine {

struct TrainRequest {
  std::optional<model::ModelConfig> model;  ///< absent: from `from`, or the run when resuming
  config::TrainOptions options;
  std::filesystem::path data;  ///< train.bin, val.bin, meta.json
  std::filesystem::path run;
  /// An HF checkpoint, or a run or kept checkpoint whose training goes on in `run`; absent: random
  /// initialisation.
  std::optional<std::filesystem::path> from;
  /// What a new run starts with instead of random initialisation; outlives the run. Null: nothing.
  const model::ParameterSource* initial = nullptr;
  bool resume = false;
  /// The machine profile; empty: rates are measured and not kept, and no algorithms of matrix
  /// products are taken.
  std::filesystem::path profile;
  /// This rank's end of a job of several, which outlives the run; null: this rank is the only one.
  /// Rank 0 alone writes metrics and summaries; every rank has a folder of its own in `run`.
  comm::Communicator* ranks = nullptr;
};

}  // namespace spillway::engine
