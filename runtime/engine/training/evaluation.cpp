#include "runtime/engine/training/evaluation.hpp"

#include <fmt/format.h>

#include "runtime/base/error.hpp"

namespace spillway::engine {

Evaluation evaluate(StepEngine& engine, Executor& executor, const data::TokenFile& tokens) {
  const config::TrainOptions& options = engine.options();
  check(tokens.size() > options.context, ErrorCode::invalid_argument,
        fmt::format("the file holds {} tokens, fewer than one window of {} and its targets",
                    tokens.size(), options.context));
  const std::uint64_t windows = data::window_count(tokens, options.context);
  const plan::Workload& workload = engine.workload();
  const std::uint32_t micro_batches = workload.micro_batches;
  const std::uint64_t at_once = std::uint64_t{options.micro_batch} * micro_batches;
  double sum = 0;
  for (std::uint64_t first = 0; first < windows; first += at_once) {
    for (std::uint32_t m = 0; m < micro_batches; ++m) {
      data::read_windows(tokens, first + std::uint64_t{m} * options.micro_batch, engine.batch(m));
    }
    executor.run(engine.actions());
    for (const double loss : engine.losses().first(micro_batches)) sum += loss;
  }
  if (!workload.runs(workload.head_layer())) sum = 0;  // another stage has the losses
  engine.ranks().add_up(RankGroups::Group::stages, {&sum, 1});
  const std::uint64_t targets = windows * options.context;
  return {.loss = sum / static_cast<double>(targets), .tokens = targets};
}

}  // namespace spillway::engine
