// What a run starts with, as far as its request leaves it open. Control thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/sampler.hpp"
#include "runtime/engine/run/directory.hpp"
#include "runtime/engine/run/job_start.hpp"
#include "runtime/engine/run/train_request.hpp"
#include "runtime/engine/run/training_data.hpp"
#include "runtime/model/parameter_layout.hpp"
#include "runtime/model/parameter_source.hpp"

namespace spillway::engine {

/// Returns the architecture in `from`: an HF checkpoint's, or a run's.
[[nodiscard]] model::ModelConfig model_config_in(const std::filesystem::path& from);

/// Returns the architecture that the request names, or that of the run that it resumes.
[[nodiscard]] model::ModelConfig model_of(const TrainRequest& request, const RunDirectory& run);

/// Returns the configured steps, or one epoch of so many ranks.
[[nodiscard]] std::uint64_t steps_of(const config::TrainOptions& options,
                                     const data::Sampler& sampler, std::uint32_t ranks);

/// Returns the masters of step 0: the checkpoint's that the request starts from, or random ones.
[[nodiscard]] std::unique_ptr<model::ParameterSource> initial_parameters(
    const TrainRequest& request, const model::ModelConfig& config, const model::ModelLayout& layout,
    std::uint64_t seed);

/// Returns what the ranks of a job compare, which may go on from a step of the run itself.
[[nodiscard]] RunSources sources_of(const TrainRequest& request, const RunConfig& config,
                                    const TrainingData& data,
                                    std::optional<StepIndex> goes_on_from);

/// Returns what the user should know of a run before it starts, a line each: dropout that is not
/// trained, and where the schedule ends; `given` is the schedule as the configuration has it.
/// Throws `Error{invalid_argument}` as config::describe_end does.
[[nodiscard]] std::vector<std::string> notes_at_start(const model::ModelConfig& config,
                                                      const config::ScheduleOptions& given,
                                                      const config::TrainOptions& options,
                                                      std::uint64_t steps);

/// Passes on what a source gives, in the blocks of `layout`. Throws `Error{invalid_argument}` that
/// names tensor and value where the compute type is fp16 and cannot hold it. Both outlive this.
class HeldParameters final : public model::ParameterSource {
 public:
  HeldParameters(const model::ParameterSource& source, const model::ModelLayout& layout,
                 DType compute)
      : source_(source), layout_(layout), compute_(compute) {}
  void read(BlockIndex block, ElementCount first, std::span<float> target) const override;
  /// Reads everything once.
  void check_all() const;

 private:
  const model::ParameterSource& source_;
  const model::ModelLayout& layout_;
  DType compute_;
};

}  // namespace spillway::engine
