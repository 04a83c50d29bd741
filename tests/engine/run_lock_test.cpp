// Who may train a run: one process at a time, in a directory that is a run's or nobody's.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/engine/run/claim.hpp"
#include "runtime/engine/run/contents.hpp"
#include "runtime/engine/run/lock.hpp"
#include "runtime/engine/run/state_folders.hpp"
#include "runtime/engine/sealed_json.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine::run_lock_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

TEST(RunLock, IsRefusedAtOnceWhileItsHolderLivesAndNamesIt) {
  const ScratchDirectory scratch("run-lock");
  const RunLock held(scratch.path() / "run", 0ms);
  const auto begin = std::chrono::steady_clock::now();
  try {
    const RunLock second(scratch.path() / "run", 1h);
    FAIL() << "it was given twice";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::busy);
    EXPECT_NE(std::string(error.what()).find(std::to_string(::getpid())), std::string::npos);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1min);
}

TEST(RunLock, TakesBackWhatItMadeUnlessItIsKept) {
  const ScratchDirectory scratch("run-lock");
  const fs::path root = scratch.path() / "new/run";
  { const RunLock lock(root, 0ms); }
  EXPECT_FALSE(fs::exists(scratch.path() / "new"));
  {
    RunLock lock(root, 0ms);
    lock.keep();
  }
  { const RunLock lock(root, 0ms); }
  EXPECT_TRUE(fs::exists(root / "lock"));
}

/// The directories of a job's ranks lie in that of the first, whichever of them gives up last.
TEST(RunLock, TakesBackWhatAnotherRankMadeWithTheLastOfThem) {
  const ScratchDirectory scratch("run-lock");
  for (const bool first_goes_first : {true, false}) {
    std::optional<RunLock> first(std::in_place, scratch.path() / "new/run", 0ms);
    std::optional<RunLock> second(std::in_place, scratch.path() / "new/run/rank-0001", 0ms,
                                  first->made());
    (first_goes_first ? first : second).reset();
    EXPECT_TRUE(fs::exists(scratch.path() / "new/run"));
    (first_goes_first ? second : first).reset();
    EXPECT_FALSE(fs::exists(scratch.path() / "new"));
    EXPECT_TRUE(fs::exists(scratch.path()));
  }
}

TEST(RunLock, WaitsForAHolderThatIsGoing) {
  const ScratchDirectory scratch("run-lock");
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const RunLock lock(scratch.path(), 0ms);
    // As of a process that was killed: nobody of this number lives.
    write(scratch.path() / "lock", "99999999\n");
    if (::write(ready[1], "1", 1) != 1) ::_exit(1);
    ::usleep(100'000);
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const RunLock lock(scratch.path(), 1h);
  EXPECT_TRUE(lock.still_there());
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

/// A process that is forked from this one, and lives until this object goes unless it has nothing
/// to do.
class ForkedProcess {
 public:
  enum class Lives : std::uint8_t { shortly, on };
  ForkedProcess(Lives lives, const std::function<void()>& work) {
    EXPECT_EQ(::pipe(ends_), 0);
    process_ = ::fork();
    if (process_ != 0) return;
    work();
    char byte = 0;
    const bool told = lives == Lives::shortly || ::read(ends_[0], &byte, 1) == 1;
    ::_exit(told ? 0 : 1);
  }
  ~ForkedProcess() {
    static_cast<void>(::write(ends_[1], "1", 1));
    int status = -1;
    ::waitpid(process_, &status, 0);
    EXPECT_EQ(status, 0);
    for (const int end : ends_) ::close(end);
  }
  ForkedProcess(const ForkedProcess&) = delete;
  ForkedProcess& operator=(const ForkedProcess&) = delete;

 private:
  int ends_[2]{};
  pid_t process_ = -1;
};

TEST(RunLock, EndsWithItsHolderThoughAForkedProcessLivesOn) {
  const ScratchDirectory scratch("run-lock");
  std::optional<RunLock> lock(std::in_place, scratch.path() / "run", 0ms);
  lock->keep();
  const ForkedProcess child(ForkedProcess::Lives::on, [] {});
  lock.reset();
  const RunLock again(scratch.path() / "run", 0ms);
  EXPECT_TRUE(again.still_there());
}

TEST(RunLock, IsLeftToItsHolderByAForkedProcess) {
  const ScratchDirectory scratch("run-lock");
  std::optional<RunLock> lock(std::in_place, scratch.path() / "run", 0ms);
  {
    const ForkedProcess child(ForkedProcess::Lives::shortly, [&] { lock.reset(); });
  }
  EXPECT_TRUE(lock->still_there());
  EXPECT_THROW(static_cast<void>(RunLock(scratch.path() / "run", 0ms)), Error);
}

TEST(StateFolders, AreClaimedByTheirMakerAndNotByWhatItForks) {
  const ScratchDirectory scratch("run-lock");
  std::optional<StateFolders> folders(std::in_place);
  folders->make(std::vector{scratch.path()}, random_run_id(), scratch.path() / "run");
  const fs::path folder = folders->paths().front();
  {
    const ForkedProcess child(ForkedProcess::Lives::shortly, [&] { folders.reset(); });
  }
  EXPECT_TRUE(is_claimed(folder));
  folders->keep();
  const ForkedProcess child(ForkedProcess::Lives::on, [] {});
  folders.reset();
  EXPECT_FALSE(is_claimed(folder));
}

class LeftOver : public testing::Test {
 protected:
  /// Makes a folder as a start of the run leaves it that was killed before its swap files were.
  fs::path make(const fs::path& directory, std::uint64_t number, std::vector<fs::path> named = {}) {
    const fs::path folder = directory / to_text(RunId{{1, number}});
    fs::create_directories(folder);
    named.insert(named.begin(), folder);
    write_mark(folder, {.run = run_, .folders = named});
    return folder;
  }
  [[nodiscard]] std::vector<std::string> reclaim() const {
    return remove_left_over(std::vector{drive_}, run_);
  }

  const ScratchDirectory scratch_{"left-over"};
  const fs::path run_ = scratch_.path() / "run";
  const fs::path drive_ = scratch_.path() / "drive";
};

TEST_F(LeftOver, OfAKilledStartGoes) {
  const fs::path folder = make(drive_, 1);
  EXPECT_EQ(reclaim().size(), 1U);
  EXPECT_FALSE(fs::exists(folder));
}

// Whoever may write on the drive can name a folder of somebody else's.
TEST_F(LeftOver, TakesNoFolderAlongThatSaysSomethingElse) {
  const fs::path state = make(scratch_.path() / "other", 1);
  const fs::path forged = make(drive_, 2, {state});
  const std::vector<std::string> told = reclaim();
  EXPECT_TRUE(fs::exists(state));
  EXPECT_TRUE(fs::exists(forged));
  ASSERT_EQ(told.size(), 1U);
  EXPECT_NE(told.front().find("is left as it is"), std::string::npos);
}

TEST_F(LeftOver, WhoseMarkLeavesItselfOutStays) {
  const fs::path state = make(scratch_.path() / "other", 1);
  const fs::path forged = make(drive_, 2);
  write_mark(forged, {.run = run_, .folders = {state}});
  EXPECT_EQ(reclaim().size(), 1U);
  EXPECT_TRUE(fs::exists(state));
}

TEST_F(LeftOver, OfAnotherUserStays) {
  if (::geteuid() != 0) GTEST_SKIP() << "SKIPPED: this machine's user cannot give files away";
  for (const bool gives_folder : {true, false}) {
    const fs::path folder = make(drive_, 1);
    ASSERT_EQ(::chown((gives_folder ? folder : folder / "run").c_str(), 12345, 12345), 0);
    EXPECT_TRUE(reclaim().empty());
    EXPECT_TRUE(fs::exists(folder));
    fs::remove_all(folder);
  }
}

TEST_F(LeftOver, WithAMarkThatNoRunWritesStays) {
  const fs::path folder = make(drive_, 1);
  fs::resize_file(folder / "run", 2 << 20);
  EXPECT_TRUE(reclaim().empty());
  EXPECT_TRUE(fs::exists(folder));
}

TEST(RunLock, NoticesThatItsDirectoryIsAnother) {
  const ScratchDirectory scratch("run-lock");
  const RunLock lock(scratch.path() / "run", 0ms);
  EXPECT_TRUE(lock.still_there());
  fs::rename(scratch.path() / "run", scratch.path() / "aside");
  EXPECT_FALSE(lock.still_there());
  fs::copy(scratch.path() / "aside", scratch.path() / "run");
  EXPECT_FALSE(lock.still_there());
}

TEST(RunClaim, TakesBackNoDirectoryThatWasThereBefore) {
  const ScratchDirectory scratch("run-claim");
  { const RunClaim claim({.run = scratch.path() / "run"}); }
  ASSERT_TRUE(fs::exists(scratch.path()));
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

/// As a process leaves it that is killed between the two.
TEST(RunClaim, NotesACommitThatTheManifestLacks) {
  TrainingHarness harness(tiny_llama());
  const config::TrainOptions options = tiny_options();
  const RunDirectory run(harness.new_run());
  const RunId id{{1, 2}};
  const fs::path state = run.state() / to_text(id);
  harness.adjust_store = [&](nvme_swap::StoreOptions& store) {
    store.directories = {state};
    store.owner = id;
  };
  Outcome outcome;
  harness.finish(*harness.make(options, run.root()), outcome);
  RunConfig config{.id = id, .model = harness.config(), .options = options, .data = "data"};
  run.write_config(config);
  run.write_manifest({.id = id,
                      .state_id = id,
                      .state = {run.in_manifest(state)},
                      .committed = false,
                      .directory = run.root()});
  RunClaim claim({.run = run.root(), .resume = true});
  EXPECT_TRUE(claim.resumes());
  claim.record(config);
  EXPECT_TRUE(run.read_manifest().committed);
}

/// Whatever a run has written beside its state before it was killed.
TEST(RunClaim, RemovesTheFilesOfARunThatNeverCommitted) {
  const ScratchDirectory scratch("run-claim");
  const RunDirectory run(scratch.path());
  const RunId id{{1, 2}};
  const fs::path state = run.state() / to_text(id);
  fs::create_directories(state);
  nvme_swap::StoreOptions store;
  store.directories = {state};
  store.owner = id;
  static_cast<void>(nvme_swap::TileStore::create(store, {.tiles = {4_KiB}}));
  run.write_config({.id = id, .model = tiny_llama(), .options = {}, .data = "data"});
  run.write_manifest(
      {.id = id, .state_id = id, .state = {run.in_manifest(state)}, .directory = run.root()});
  const fs::path left[] = {run.metrics(), run.trace(), run.notes()};
  for (const fs::path& path : left) write(path, "x");
  RunClaim claim({.run = run.root()});
  claim.prepare_state({});
  for (const fs::path& path : left) EXPECT_FALSE(fs::exists(path)) << path;
}

TEST(RunContents, TellWhatAKilledStartLeftFromWhatIsSomebodys) {
  const ScratchDirectory scratch("run-contents");
  const fs::path root = scratch.path() / "run";
  EXPECT_FALSE(foreign_entry(root));
  fs::create_directories(root / "state/0123456789abcdef0123456789abcdef");
  write(root / "lock", "");
  write(root / ".manifest.json.17.0.tmp", "half");
  write(root / "job.secret", "of ranks that never met");
  write_sealed_json(root / "config.json", {{"id", "x"}});
  EXPECT_FALSE(foreign_entry(root));
  write(root / "config.json", R"({"model_type": "gpt2"})");
  EXPECT_EQ(foreign_entry(root), root / "config.json");
  fs::remove(root / "config.json");
  write(root / "state/notes.txt", "mine");
  EXPECT_EQ(foreign_entry(root), root / "state/notes.txt");
  fs::remove_all(root / "state");
  for (const char* name :
       {"metrics.jsonl", "model.safetensors", "checkpoints/step-1/config.json"}) {
    write(root / name, "x");
    EXPECT_TRUE(foreign_entry(root)) << name;
    fs::remove_all(root / *fs::path(name).begin());
  }
  EXPECT_FALSE(foreign_entry(root));
  write(scratch.path() / "file", "x");
  EXPECT_EQ(foreign_entry(scratch.path() / "file"), scratch.path() / "file");
}

TEST(RunContents, LosesWhatAKilledProcessHadBegunToWrite) {
  const ScratchDirectory scratch("run-contents");
  write(scratch.path() / "manifest.json", "whole");
  write(scratch.path() / ".manifest.json.17.0.tmp", "half");
  write(scratch.path() / ".trace.json.4000000.3.tmp", "half");
  write(scratch.path() / "job.secret", "of ranks that never met");
  write(scratch.path() / ".notes.tmp", "mine");
  remove_temporaries(scratch.path());
  EXPECT_TRUE(fs::exists(scratch.path() / "manifest.json"));
  EXPECT_TRUE(fs::exists(scratch.path() / ".notes.tmp"));
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), {}), 2);
}

TEST(RunContents, FindsRunsAndTheirSwapFilesAtAnyDepth) {
  const ScratchDirectory scratch("run-contents");
  write(scratch.path() / "hf/config.json", "{}");
  EXPECT_FALSE(run_in(scratch.path()));
  EXPECT_FALSE(run_in(scratch.path() / "absent"));
  write(scratch.path() / "a/b/tiles-0.swap", "");
  EXPECT_TRUE(run_in(scratch.path()));
  fs::remove_all(scratch.path() / "a");
  write(scratch.path() / "c/run/manifest.json", "{}");
  EXPECT_EQ(run_in(scratch.path()), scratch.path() / "c/run");
  EXPECT_EQ(run_in(scratch.path() / "c/run"), scratch.path() / "c/run");
}

}  // namespace
}  // namespace spillway::engine::run_lock_test
