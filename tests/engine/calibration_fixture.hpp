// A tiny model whose calibration a test looks at.
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "runtime/engine/machine/calibrate.hpp"
#include "runtime/engine/prepare/resolve.hpp"
#include "tests/engine/observed_ops.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine {

class CalibrationOfTinyModel : public testing::Test {
 protected:
  explicit CalibrationOfTinyModel(model::ModelConfig config = tiny_llama(2))
      : config_(std::move(config)), options_(tiny_options()) {
    options_.compute = DType::bf16;
    resolve(options_, config_);
    auto ops = std::make_unique<ObservedOps>(make_ops(options_));
    ops_ = ops.get();
    model_.ops = std::move(ops);
    model_.transformer = std::make_unique<model::Transformer>(
        config_, model::BatchShape{.batch = options_.micro_batch, .sequence = options_.context},
        options_.compute, *ops_);
  }

  plan::MachineProfile calibrate_it() {
    const plan::Workload workload = make_workload(config_, *model_.transformer, options_);
    const plan::Budgets budgets{.device = 1_GiB, .host = 1_GiB, .nvme = {}};
    return calibrate({.config = config_,
                      .options = options_,
                      .model = model_,
                      .workload = workload,
                      .budgets = budgets,
                      .state_directories = std::nullopt},
                     {}, [](const std::string&) {});
  }

  model::ModelConfig config_;
  config::TrainOptions options_;
  ModelRuntime model_;
  ObservedOps* ops_ = nullptr;
};

}  // namespace spillway::engine
