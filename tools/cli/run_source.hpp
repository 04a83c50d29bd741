// Where a command takes a trained model from: --model HF_DIR or --run RUN.
#pragma once

#include <filesystem>
#include <memory>

#include "runtime/engine/run/reader.hpp"
#include "runtime/model/hf/checkpoint.hpp"
#include "runtime/model/layout_view.hpp"
#include "tools/cli/command_line.hpp"

namespace spillway::cli {

struct SourceFlags {
  std::filesystem::path model;
  std::filesystem::path run;
  std::string compute;

  void add_to(Command command);
};

/// An opened source.
class ModelSource {
 public:
  explicit ModelSource(const SourceFlags& flags);

  [[nodiscard]] const model::ModelConfig& config() const { return config_; }
  [[nodiscard]] DType compute() const { return compute_; }
  /// Returns that of a run; empty for a checkpoint.
  [[nodiscard]] engine::DeviceRecord trained_on() const {
    return run_ ? run_->config().device : engine::DeviceRecord{};
  }
  [[nodiscard]] const model::ParameterSource& parameters() const;
  /// Returns the run, if that is what the model comes from.
  [[nodiscard]] engine::RunReader* run() { return run_.get(); }

 private:
  model::ModelConfig config_;
  DType compute_ = DType::fp32;
  model::ModelLayout layout_;
  std::unique_ptr<engine::RunReader> run_;
  std::unique_ptr<model::LayoutView> whole_;
  std::unique_ptr<model::CheckpointReader> checkpoint_;
};

}  // namespace spillway::cli
