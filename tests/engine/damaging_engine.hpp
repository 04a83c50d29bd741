// A disk that gives back what it was not given, and the end of a run that reads activations there.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "runtime/base/error.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine {

/// Shows every read that has ended to `damage`, which may change what it brought.
class DamagingEngine final : public nvme_swap::IoEngine {
 public:
  using Damage = std::function<void(std::byte* target)>;
  DamagingEngine(std::unique_ptr<IoEngine> engine, Damage damage)
      : engine_(std::move(engine)), damage_(std::move(damage)) {}
  [[nodiscard]] std::string_view name() const override { return "damaging"; }
  [[nodiscard]] std::size_t submit(std::span<const nvme_swap::IoRequest> requests) override {
    const std::size_t taken = engine_->submit(requests);
    for (const auto& request : requests.first(taken)) {
      const bool reads = request.operation == nvme_swap::IoOperation::read;
      targets_[request.tag] = reads ? request.data : nullptr;
    }
    return taken;
  }
  [[nodiscard]] std::size_t poll(std::span<nvme_swap::IoResult> results) override {
    const std::size_t finished = engine_->poll(results);
    for (const auto& result : results.first(finished)) {
      if (std::byte* target = targets_[result.tag]) damage_(target);
    }
    return finished;
  }
  void wait() override { engine_->wait(); }

 private:
  std::unique_ptr<IoEngine> engine_;
  const Damage damage_;
  std::map<std::uint64_t, std::byte*> targets_;
};

/// Damages what later stores of the harness read.
inline void damage_reads(TrainingHarness& harness, const DamagingEngine::Damage& damage) {
  harness.adjust_store = [damage](nvme_swap::StoreOptions& store) {
    store.adapt = [damage](auto engine, const auto&) -> std::unique_ptr<nvme_swap::IoEngine> {
      return std::make_unique<DamagingEngine>(std::move(engine), damage);
    };
  };
}

inline void expect_stopped_by_a_flipped_bit(TrainingHarness& harness,
                                            const config::TrainOptions& options) {
  damage_reads(harness, [](std::byte* target) { *target ^= std::byte{1}; });
  const auto trainer = harness.make(options, harness.new_run());
  Outcome outcome;
  try {
    harness.steps(*trainer, options, 1, outcome);
    FAIL() << "nothing was noticed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
    EXPECT_NE(std::string(error.what()).find("activations-0.swap"), std::string::npos)
        << error.what();
  }
}

}  // namespace spillway::engine
