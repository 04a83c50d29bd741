// A power cut at any instant, losing or tearing whatever was not flushed, leaves a committed step:
// every prefix of the writes and flushes of a run, and sampled reorderings of what is in flight
// (`SPILLWAY_TEST_POWER_CUTS` of them for each kind of run).
#include <gtest/gtest.h>

#include "tests/nvme_swap/power_cut_run.hpp"

namespace spillway::nvme_swap::power_cut_test {
namespace {

using PowerCut = PowerCutTest;

TEST_P(PowerCut, LeavesACommittedStepWholeAtEveryInstant) {
  record(false);
  ASSERT_GT(recording_.size(), 80U);
  for (std::size_t cut = 0; cut <= recording_.size(); ++cut) {
    for (const bool keep : {false, true}) {
      CutDisk disk(fresh_, recording_, cut);
      if (keep) disk.keep_all();
      ASSERT_NO_THROW(check(disk, reported_before(cut))) << "cut before event " << cut;
      ASSERT_FALSE(HasFailure()) << "cut before event " << cut << " keep " << keep;
    }
  }
}

TEST_P(PowerCut, LeavesACommittedStepWholeInAnyOrderOfWhatIsInFlight) {
  std::mt19937_64 random(test_seed());
  const std::size_t samples = count_from("SPILLWAY_TEST_POWER_CUTS", 3500);
  record(false);
  for (std::size_t sample = 0; sample < samples; ++sample) {
    const std::size_t cut = random() % (recording_.size() + 1);
    CutDisk disk(fresh_, recording_, cut);
    disk.settle(random);
    ASSERT_NO_THROW(check(disk, reported_before(cut))) << "cut before event " << cut;
    ASSERT_FALSE(HasFailure()) << "cut before event " << cut << " sample " << sample;
  }
}

TEST_P(PowerCut, DuringCreationLeavesNothingOrAWholeStore) {
  std::mt19937_64 random(test_seed());
  record(true);
  for (std::size_t cut = 0; cut <= recording_.size(); ++cut) {
    for (int sample = 0; sample < 30; ++sample) {
      CutDisk disk(fresh_, recording_, cut);
      if (sample == 1) disk.keep_all();
      if (sample > 1) disk.settle(random);
      const StoreOptions options = put_on_disk(disk);
      bool committed = false;
      try {
        committed = TileStore::has_commit(options);
      } catch (const Error& error) {
        // A header that was torn: not a store, but never taken for a fresh one either.
        EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
        ASSERT_FALSE(reported_before(cut)) << error.what();
        continue;
      }
      ASSERT_TRUE(committed || !reported_before(cut)) << "cut before event " << cut;
      if (committed) {
        expect_step(*TileStore::open(options), 0);
      } else {
        write_step(*TileStore::create(options, layout_of(2, 4_KiB)), 9);
      }
      ASSERT_FALSE(HasFailure()) << "cut before event " << cut << " sample " << sample;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, PowerCut, kPowerCutRuns, name_of_run);

}  // namespace
}  // namespace spillway::nvme_swap::power_cut_test
