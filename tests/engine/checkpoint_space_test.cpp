// The space that a run needs for the checkpoints that it keeps, before it begins.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/base/error.hpp"
#include "runtime/engine/run/kept_checkpoints.hpp"

namespace spillway::engine::checkpoint_space_test {
namespace {

namespace fs = std::filesystem;

/// A run whose state is a part of the space that is free on its disk.
class CheckpointSpace : public testing::Test {
 protected:
  CheckpointSpace() { fs::create_directories(path_); }
  ~CheckpointSpace() override { fs::remove_all(path_); }

  void keep_checkpoint_of(int step) const {
    const fs::path checkpoint = path_ / "checkpoints" / ("step-" + std::to_string(step));
    fs::create_directories(checkpoint);
    std::ofstream(checkpoint / "manifest.json") << "{}";
  }

  /// Returns what is refused where the two tiles of each rank's state take these parts of the free
  /// space; empty: nothing.
  [[nodiscard]] std::string refused(const KeptCheckpoints::Options& options, double first,
                                    double second) const {
    const auto free = static_cast<double>(fs::space(path_).available);
    const nvme_swap::StoreLayout layout{{Bytes{static_cast<std::uint64_t>(free * first)},
                                         Bytes{static_cast<std::uint64_t>(free * second)}}};
    try {
      RankGroups alone;
      KeptCheckpoints(RunDirectory(path_), alone, options).check_space(layout);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
      return error.what();
    }
    return "";
  }

  fs::path path_ =
      fs::path(testing::TempDir()) / ("checkpoint_space_" + std::to_string(::getpid()));
};

// Others write to this disk too, so that what is needed stays a fifth of it away from what is free.
TEST_F(CheckpointSpace, IsThatOfAllThatAreKeptAndOfTheOneThatIsWritten) {
  const KeptCheckpoints::Options options{.save_every = 1, .keep = 2};
  EXPECT_EQ(refused(options, 0.2, 0.06), "") << "three need 0.78 of the free space";
  EXPECT_THAT(refused(options, 0.3, 0.1), testing::HasSubstr("does not fit: 3 checkpoints of "))
      << "three need 1.2 of it";
  EXPECT_NE(refused(options, 0.1, 0.3), "") << "as the last tile too";
}

TEST_F(CheckpointSpace, IsThatOfEveryRank) {
  KeptCheckpoints::Options options{.save_every = 1, .keep = 1, .part = {.ranks = 4}};
  EXPECT_EQ(refused(options, 0.05, 0.05), "") << "two parts of four ranks need 0.8";
  EXPECT_NE(refused(options, 0.1, 0.05), "") << "1.2";
  options.part.ranks = 2;
  EXPECT_EQ(refused(options, 0.1, 0.05), "") << "0.6";
}

TEST_F(CheckpointSpace, IsNotNeededAgainForThoseThatAreThere) {
  const KeptCheckpoints::Options options{.save_every = 1, .keep = 2};
  EXPECT_NE(refused(options, 0.2, 0.2), "") << "three need 1.2";
  fs::create_directories(path_ / "checkpoints/step-1");
  EXPECT_NE(refused(options, 0.2, 0.2), "") << "one without its manifest is not there";
  keep_checkpoint_of(2);
  EXPECT_EQ(refused(options, 0.2, 0.2), "") << "two more need 0.8";
  keep_checkpoint_of(3);
  keep_checkpoint_of(4);
  EXPECT_EQ(refused(options, 2, 1), "") << "no more are needed";
  keep_checkpoint_of(5);
  EXPECT_EQ(refused(options, 2, 1), "") << "a run that kept more before needs no more either";
}

TEST_F(CheckpointSpace, IsNotNeededWhereNoneAreKept) {
  EXPECT_EQ(refused({.save_every = 0, .keep = 2}, 2, 1), "");
}

}  // namespace
}  // namespace spillway::engine::checkpoint_space_test
