// A process that is killed leaves writes that the next one sees and that no flush covers. A power
// cut after a run was killed, opened again and went on, leaves a committed step all the same
// (`SPILLWAY_TEST_POWER_CUTS` sampled cuts for each kind of run).
#include <gtest/gtest.h>

#include <set>

#include "tests/nvme_swap/power_cut_run.hpp"

namespace spillway::nvme_swap::power_cut_reopen_test {
namespace {

class PowerCutAfterReopening : public PowerCutTest {
 protected:
  /// Kills the process before event `kill`: what ended stays, what had begun was done in part, and
  /// nothing of it is durable by that.
  void kill_before(std::size_t kill, std::mt19937_64& random) {
    using Kind = RecordedEvent::Kind;
    recording_.resize(kill);
    std::set<std::size_t> in_flight;
    for (const RecordedEvent& event : recording_) {
      if (event.kind == Kind::write_begun) in_flight.insert(event.operation);
      if (event.kind == Kind::write_ended) in_flight.erase(event.operation);
    }
    Recording ended;
    for (const std::size_t write : in_flight) {
      RecordedEvent& event = recording_[write];
      const std::size_t sectors = event.data.size() / CutDisk::kSectorBytes;
      event.data.resize(random() % (sectors + 1) * CutDisk::kSectorBytes);
      ended.push_back({.kind = Kind::write_ended, .operation = write, .file = event.file});
    }
    recording_.insert(recording_.end(), ended.begin(), ended.end());
  }

  /// Opens what the killed process left, and trains on for `steps`.
  void reopen(std::uint64_t steps) {
    CutDisk left(fresh_, recording_, recording_.size());
    left.keep_all();
    StoreOptions options = put_on_disk(left);
    if (TileStore::content(options) != StoreContent::committed) return;
    record_engines(options);
    const auto store = TileStore::open(options);
    const std::uint64_t step = store->committed()->step.value();
    // From here on the run has told its user that it continues after this step.
    recording_.push_back({.kind = RecordedEvent::Kind::commit_reported, .step = step});
    TrainingRun run(*store, GetParam(), recording_);
    for (std::uint64_t next = step + 1; next <= step + steps; ++next) run.step(next);
    run.end_commit();
  }
};

TEST_P(PowerCutAfterReopening, LeavesACommittedStepWhole) {
  std::mt19937_64 random(test_seed());
  const std::size_t samples = count_from("SPILLWAY_TEST_POWER_CUTS", 1000);
  constexpr std::size_t kCutsEach = 10;
  record(false);
  const Recording whole = recording_;
  for (std::size_t sample = 0; sample < samples;) {
    recording_ = whole;
    std::size_t killed = 0;
    for (std::uint64_t kills = 1 + random() % 2; kills > 0; --kills) {
      killed += random() % (recording_.size() + 1 - killed);
      kill_before(killed, random);
      killed = recording_.size();
      ASSERT_NO_THROW(reopen(1 + random() % 3)) << "killed before event " << killed;
    }
    for (std::size_t i = 0; i < kCutsEach; ++i, ++sample) {
      const std::size_t cut = killed + random() % (recording_.size() + 1 - killed);
      CutDisk disk(fresh_, recording_, cut);
      disk.settle(random);
      ASSERT_NO_THROW(check(disk, reported_before(cut)))
          << "killed before event " << killed << ", cut before event " << cut;
      ASSERT_FALSE(HasFailure()) << "killed before event " << killed << ", cut before event " << cut
                                 << " of " << recording_.size();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, PowerCutAfterReopening, kPowerCutRuns, name_of_run);

}  // namespace
}  // namespace spillway::nvme_swap::power_cut_reopen_test
