// The run of three ranks from outside: what reads runs reads it as it reads the run of one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/engine/run/directory.hpp"
#include "tests/engine/ranks_harness.hpp"
#include "tests/tools/program.hpp"

namespace spillway::engine::sharded_run_test {
namespace {

namespace fs = std::filesystem;
using spillway::testing::read_all;
using ::testing::HasSubstr;

constexpr std::uint32_t kRanks = 3;

/// Makes `run` of what the ranks of a job have saved, as training leaves it.
void write_run(const fs::path& run, const model::ModelConfig& config, const JobOutcome& job) {
  for (std::size_t rank = 0; rank < job.saved.stores.size(); ++rank) {
    const RunDirectory directory(rank_directory(run, rank));
    fs::create_directories(directory.root());
    fs::rename(job.saved.stores[rank].directories[0], directory.state());
    RunConfig recorded{.id = random_run_id(), .model = config, .options = {}, .data = "data"};
    recorded.options = tiny_options();
    recorded.options.tile_parameters = job.saved.shape.tile_parameters.value();
    directory.write_config(recorded);
    directory.write_manifest({.id = recorded.id,
                              .state_id = *job.saved.stores[rank].owner,
                              .state = {"state"},
                              .committed = true,
                              .directory = directory.root()});
  }
}

class ShardedRun : public ::testing::Test {
 protected:
  ShardedRun() : harness_(tiny_gpt2(1)) {
    const JobOutcome three = harness_.train_job(
        {.ranks = {.count = kRanks, .sharding = plan::Sharding::parameters}, .steps = 2});
    Job job{.steps = 0, .from = &three.saved};
    job.adjust = [](auto& options) { options.tile_parameters = kLeafParameters; };
    const JobOutcome one = harness_.train_job(job);
    write_run(scratch_.path() / "three", harness_.config(), three);
    write_run(scratch_.path() / "one", harness_.config(), one);
  }
  [[nodiscard]] spillway::testing::Answer run(std::vector<std::string> arguments) const {
    return spillway::testing::Program(scratch_.path(), std::move(arguments)).wait();
  }
  [[nodiscard]] std::string path(const std::string& name) const { return scratch_.path() / name; }

  RanksHarness harness_;
  ScratchDirectory scratch_{"spillway_sharded"};
};

TEST_F(ShardedRun, IsExportedToTheBytesOfARunOfOneRank) {
  for (const char* name : {"one", "three"}) {
    const auto answer = run({"export", path(name), path(name + std::string("_out"))});
    ASSERT_EQ(answer.exit_code, 0) << answer.err;
  }
  for (const char* file : {"model.safetensors", "config.json"}) {
    EXPECT_EQ(read_all(scratch_.path() / "one_out" / file),
              read_all(scratch_.path() / "three_out" / file))
        << file;
  }
}

TEST_F(ShardedRun, IsDescribedAndCheckedWithAllItsRanks) {
  const auto info = run({"info", path("three"), "--json"});
  EXPECT_EQ(info.json()["ranks"], kRanks) << info.err;
  EXPECT_EQ(info.json()["step"], 2);
  const auto sound = run({"fsck", path("three"), "--json"});
  EXPECT_EQ(sound.exit_code, 0) << sound.err;
  EXPECT_EQ(sound.json()["ranks"].size(), kRanks - 1);
  const fs::path file = rank_directory(path("three"), 2) / "state" / "tiles-0.swap";
  fs::resize_file(file, fs::file_size(file) - kPageBytes);
  EXPECT_NE(run({"fsck", path("three"), "--json"}).exit_code, 0);
}

/// What a kill leaves between the commits of two ranks.
TEST_F(ShardedRun, IsReadAtTheStepThatAllRanksHave) {
  const auto train = [this](int steps) {
    return harness_.train_job(
        {.ranks = {.count = kRanks, .sharding = plan::Sharding::parameters},
         .adjust = [](auto& options) { options.state_home = config::StateHome::nvme; },
         .steps = steps});
  };
  JobOutcome behind = train(2);
  const JobOutcome ahead = train(3);
  for (const std::size_t rank : {0U, 2U}) behind.saved.stores[rank] = ahead.saved.stores[rank];
  write_run(scratch_.path() / "gap", harness_.config(), behind);
  for (const char* name : {"three", "gap"}) {
    const auto answer = run({"export", path(name), path(name + std::string("_out"))});
    ASSERT_EQ(answer.exit_code, 0) << answer.err;
    EXPECT_EQ(answer.err.find("which another rank has not: step 2 is read") != std::string::npos,
              name == std::string("gap"));
  }
  EXPECT_EQ(read_all(scratch_.path() / "three_out/model.safetensors"),
            read_all(scratch_.path() / "gap_out/model.safetensors"));
  EXPECT_EQ(run({"info", path("gap"), "--json"}).json()["step"], 2);

  const auto sound = run({"fsck", path("gap"), "--json"});
  EXPECT_EQ(sound.exit_code, 0) << sound.out;
  EXPECT_EQ(sound.json()["stores"][0]["committed_step"], 3);
  EXPECT_EQ(sound.json()["stores"][1]["committed_step"], 2);
  EXPECT_EQ(sound.json()["ranks"][0]["stores"].size(), 1U);
  EXPECT_EQ(sound.json()["ranks"][1]["stores"].size(), 2U);
}

TEST_F(ShardedRun, IsRefusedByRankAndFolderIfOneIsMissing) {
  fs::remove_all(rank_directory(path("three"), 1));
  const auto answer = run({"export", path("three"), path("out")});
  EXPECT_NE(answer.exit_code, 0);
  EXPECT_THAT(answer.err, HasSubstr(path("three") + "/rank-0001 is not there"));
  EXPECT_THAT(answer.err, HasSubstr("rank 1 of 3"));
  EXPECT_FALSE(fs::exists(path("out")));
}

}  // namespace
}  // namespace spillway::engine::sharded_run_test
