// State that the disk gives back otherwise than it was written: the run ends there, nothing of it
// reaches the disk, and a resumed run goes on from the last commit with the bits of a whole one.
#include <gtest/gtest.h>

#include <map>

#include "tests/engine/training_harness.hpp"

namespace spillway::engine {
namespace {

struct Damage {
  bool armed = false;
  int reads_before = 0;  ///< that come back as they are
  int reads = 0;
};

/// Flips one bit of one read.
class DamagingEngine final : public nvme_swap::IoEngine {
 public:
  DamagingEngine(std::unique_ptr<IoEngine> engine, Damage& damage)
      : engine_(std::move(engine)), damage_(damage) {}
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
      std::byte* const target = targets_[result.tag];
      if (target == nullptr || !damage_.armed) continue;
      if (damage_.reads++ == damage_.reads_before) target[5000] ^= std::byte{16};
    }
    return finished;
  }
  void wait() override { engine_->wait(); }

 private:
  std::unique_ptr<IoEngine> engine_;
  Damage& damage_;
  std::map<std::uint64_t, std::byte*> targets_;
};

class DamagedRead : public ::testing::TestWithParam<StateFormat> {};

TEST_P(DamagedRead, EndsTheRunAndLeavesTheCommitToGoOnFrom) {
  TrainingHarness harness(tiny_llama());
  config::TrainOptions options = tiny_options();
  options.compute = DType::bf16;
  options.state_format = GetParam();
  options.state_home = config::StateHome::nvme;
  const Outcome whole = harness.train(options, 5);
  for (const int reads_before : {0, 4}) {
    const std::filesystem::path run = harness.new_run();
    Damage damage{.reads_before = reads_before};
    harness.adjust_store = [&](nvme_swap::StoreOptions& store) {
      store.adapt = [&](auto engine, const auto&) -> std::unique_ptr<nvme_swap::IoEngine> {
        return std::make_unique<DamagingEngine>(std::move(engine), damage);
      };
    };
    Outcome outcome;
    {
      const auto trainer = harness.make(options, run);
      harness.steps(*trainer, options, 3, outcome);
      trainer->commit();
      damage.armed = true;
      Outcome lost;
      try {
        harness.steps(*trainer, options, 2, lost);
        FAIL() << "nothing was noticed";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
        EXPECT_NE(std::string(error.what()).find(".swap"), std::string::npos) << error.what();
      }
    }
    damage.armed = false;
    const auto trainer = harness.make(options, run, true);
    harness.steps(*trainer, options, 2, outcome);
    harness.finish(*trainer, outcome);
    EXPECT_EQ(outcome, whole) << reads_before;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, DamagedRead,
                         ::testing::Values(StateFormat::fp32, StateFormat::split),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

}  // namespace
}  // namespace spillway::engine
