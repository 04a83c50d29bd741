#include "tools/cli/run_source.hpp"

#include "runtime/base/error.hpp"
#include "tools/cli/hub.hpp"

namespace spillway::cli {

void SourceFlags::add_to(Command command) {
  const Argument checkpoint = command.add_option(
      "--model", model,
      "This HF checkpoint is used: a directory, or a model of the hub in the local cache");
  command.add_option("--run", run, "The last committed step of this run is used")
      .excludes(checkpoint);
  command.add_option(
      "--compute", compute,
      "The model computes in this type: fp32, bf16 or fp16; by default the run's, or fp32 for "
      "a checkpoint");
}

ModelSource::ModelSource(const SourceFlags& flags) {
  check(flags.model.empty() != flags.run.empty(), ErrorCode::invalid_argument,
        "give the model by --model HF_DIR or by --run RUN");
  if (!flags.run.empty()) {
    run_ = std::make_unique<engine::RunReader>(flags.run);
    config_ = run_->config().model;
    compute_ = run_->config().options.compute;
    layout_ = model::make_layout(config_);
    if (run_->layout().operator_tile > 0) {  // inference runs layers whole
      whole_ = std::make_unique<model::LayoutView>(*run_, run_->layout(), layout_);
    }
  } else {
    const std::filesystem::path directory = find_checkpoint(flags.model);
    config_ = model::load_model_config(directory / "config.json");
    layout_ = model::make_layout(config_);
    checkpoint_ = std::make_unique<model::CheckpointReader>(directory, config_, layout_);
  }
  if (!flags.compute.empty()) compute_ = parse_dtype(flags.compute);
}

const model::ParameterSource& ModelSource::parameters() const {
  if (whole_) return *whole_;
  if (run_) return *run_;
  return *checkpoint_;
}

}  // namespace spillway::cli
