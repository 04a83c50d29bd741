// metrics.jsonl, trace.json and the fingerprint of the training data: what a run that goes on finds
// of them.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/engine/report/metrics_log.hpp"
#include "runtime/engine/report/step_trace.hpp"
#include "runtime/engine/run/directory.hpp"
#include "runtime/engine/run/training_data.hpp"
#include "runtime/engine/train_loop.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine::run_files_test {
namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Metrics : public testing::Test {
 protected:
  void append(std::uint64_t first, std::uint64_t last) {
    MetricsLog log(path_, first - 1);
    for (std::uint64_t step = first; step <= last; ++step) {
      StepResult result;
      result.step = step;
      log.append(result, {});
    }
  }
  /// Steps of the lines that JSON can be read from.
  [[nodiscard]] std::vector<std::uint64_t> steps() const {
    std::ifstream file(path_);
    std::vector<std::uint64_t> result;
    for (std::string line; std::getline(file, line);) {
      result.push_back(nlohmann::json::parse(line).at("step"));
    }
    return result;
  }

  ScratchDirectory scratch_{"metrics"};
  fs::path path_ = scratch_.path() / "metrics.jsonl";
};

TEST_F(Metrics, LinesBeyondTheCommitAreCutOff) {
  append(1, 5);
  { const MetricsLog log(path_, 3); }
  EXPECT_EQ(steps(), (std::vector<std::uint64_t>{1, 2, 3}));
  append(4, 4);
  EXPECT_EQ(steps(), (std::vector<std::uint64_t>{1, 2, 3, 4}));
}

TEST_F(Metrics, ADamagedLineTakesNoOtherWithIt) {
  append(1, 5);
  std::string text = contents(path_);
  const std::size_t second = text.find('\n') + 1;
  text.replace(second, 8, std::string(8, '\0'));
  std::ofstream(path_, std::ios::binary) << text << R"({"step":6,"lo)";
  const MetricsLog log(path_, 5);
  EXPECT_EQ(log.damaged(), 1U);
  EXPECT_EQ(steps(), (std::vector<std::uint64_t>{1, 3, 4, 5}));
}

TEST_F(Metrics, AValidationLossIsAddedToTheLastLine) {
  append(1, 2);
  {
    MetricsLog log(path_, 2);
    EXPECT_TRUE(log.can_amend());
    log.amend(0.5);
    EXPECT_FALSE(log.can_amend());
  }
  {
    const MetricsLog log(path_, 2);
    EXPECT_FALSE(log.can_amend());
  }
  const std::string text = contents(path_);
  EXPECT_TRUE(text.ends_with("},\"val_loss\":0.5}\n")) << text;
  EXPECT_EQ(steps().size(), 2U);
}

TEST_F(Metrics, AFileThatCannotBeReadIsNotCutOff) {
  // Nothing is mapped at its beginning: to read it is an I/O error.
  fs::create_symlink("/proc/self/mem", path_);
  try {
    const MetricsLog log(path_, 1);
    ADD_FAILURE() << "its lines are lost";
  } catch (const Error& error) {
    EXPECT_EQ(error.native(), EIO) << error.what();
  }
}

TEST_F(Metrics, AFileThatWasRemovedIsMissed) {
  const MetricsLog log(path_, 0);
  log.check_present();
  fs::remove(path_);
  EXPECT_THROW(log.check_present(), Error);
  std::ofstream(path_) << "another";
  EXPECT_THROW(log.check_present(), Error);
}

TEST(StepTrace, AnErrorOfItsFileIsThrownAndLeavesTheOldOne) {
  const ScratchDirectory scratch("trace");
  const fs::path path = scratch.path() / "trace.json";
  const StepTrace trace(1);
  trace.write(path);
  const std::string before = contents(path);
  EXPECT_FALSE(nlohmann::json::parse(before).at("traceEvents").empty());
  // A limit on the size of files is the portable way to make write fail in the middle.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small{.rlim_cur = before.size() / 2, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  int native = 0;
  try {
    trace.write(path);
  } catch (const Error& error) {
    native = error.native();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_EQ(native, EFBIG);
  EXPECT_EQ(contents(path), before);
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), {}), 1);
}

TEST(StepTrace, APlanIsOverWhenItIsRecorded) {
  const ScratchDirectory scratch("trace");
  TrainingHarness harness(tiny_gpt2(1));
  const config::TrainOptions options = tiny_options();
  const auto trainer = harness.make(options, harness.new_run());
  const auto begin = std::chrono::steady_clock::now();
  StepTrace trace(trainer->cycle().lists().most_ops());
  Outcome outcome;
  harness.steps(*trainer, options, 1, outcome);
  trace.record(trainer->cycle().last_step());
  const std::chrono::duration<double, std::micro> now = std::chrono::steady_clock::now() - begin;
  trace.write(scratch.path() / "trace.json");
  const auto written = nlohmann::json::parse(contents(scratch.path() / "trace.json"));
  double end = 0;
  for (const auto& event : written.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    end = std::max(end, event.at("ts").get<double>() + event.at("dur").get<double>());
  }
  EXPECT_GT(end, 0);
  EXPECT_LE(end, now.count());
}

class Data : public testing::Test {
 protected:
  Data() {
    std::ofstream(scratch_.path() / "meta.json") << R"({"dtype": "uint16", "vocab_size": 67})";
    write_tokens(scratch_.path() / "train.bin", 67, 300'000);
  }
  [[nodiscard]] TrainingData open(std::uint32_t context = 16) const {
    return TrainingData::open(scratch_.path(), tiny_gpt2(), context);
  }
  [[nodiscard]] std::uint64_t fingerprint() const { return open().identity(67).fingerprint; }

  ScratchDirectory scratch_{"training-data"};
};

TEST_F(Data, AChangedTokenAnywhereChangesTheFingerprint) {
  const std::uint64_t before = fingerprint();
  EXPECT_EQ(fingerprint(), before);
  const std::string text = contents(scratch_.path() / "train.bin");
  // The ends, the middle, and both sides of where blocks of 64 Ki tokens meet.
  for (const std::size_t token : {0U, 65'535U, 65'536U, 150'000U, 262'144U, 299'999U}) {
    std::string changed = text;
    changed[2 * token] = static_cast<char>(changed[2 * token] ^ 1);
    std::ofstream(scratch_.path() / "train.bin", std::ios::binary) << changed;
    EXPECT_NE(fingerprint(), before) << token;
  }
  std::ofstream(scratch_.path() / "train.bin", std::ios::binary) << text.substr(0, text.size() - 2);
  EXPECT_NE(fingerprint(), before);
}

TEST_F(Data, ATokenBeyondAHundredMillionsIsNoticedToo) {
  // Zeros that take no space, in blocks of 64 Ki of which one more than 2,048 holds the change.
  const fs::path path = scratch_.path() / "train.bin";
  const std::uint64_t tokens = 2049 * std::uint64_t{65'536};
  fs::resize_file(path, 0);
  fs::resize_file(path, 2 * tokens);
  const std::uint64_t before = fingerprint();
  for (const std::uint64_t token : {tokens - 65'536 - 7, tokens / 2}) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(2 * token));
    file.put(1);
    file.close();
    const std::uint64_t now = fingerprint();
    EXPECT_NE(now, before) << token;
    fs::resize_file(path, 0);
    fs::resize_file(path, 2 * tokens);
  }
}

TEST_F(Data, IsReadAgainWhereAnybodyMayHaveChangedIt) {
  const fs::path path = scratch_.path() / "train.bin";
  const DataIdentity fresh = open().identity(67);
  EXPECT_FALSE(fresh.stamp.has_value()) << "a change in the same instant would go unnoticed";
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  DataIdentity known = open().identity(67, fresh);
  ASSERT_TRUE(known.stamp.has_value());
  EXPECT_EQ(known.fingerprint, fresh.fingerprint);
  // What is known of an untouched file is believed, which shows that it is not read.
  known.fingerprint = 5;
  EXPECT_EQ(open().identity(67, known).fingerprint, 5U);
  // Touched, its content changed behind the old time of modification, and put in another's place.
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(open().identity(67, known).fingerprint, fresh.fingerprint);
  const auto time = fs::last_write_time(path);
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).put(1);
  fs::last_write_time(path, time);
  EXPECT_NE(open().identity(67, known).fingerprint, 5U);
  fs::copy_file(path, scratch_.path() / "copy");
  fs::rename(scratch_.path() / "copy", path);
  EXPECT_NE(open().identity(67, known).fingerprint, 5U);
}

TEST_F(Data, ValidationThatNoEvaluationCouldReadIsRefusedAtTheStart) {
  write_tokens(scratch_.path() / "val.bin", 67, 17);
  EXPECT_NO_THROW((void)open(16));
  EXPECT_THROW((void)open(17), Error);
  write_tokens(scratch_.path() / "val.bin", 67, 70'000);
  EXPECT_NO_THROW((void)open());
  std::fstream file(scratch_.path() / "val.bin", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(2 * 69'999);
  file.put(67);
  file.close();
  try {
    (void)open();
    FAIL() << "a token beyond the vocabulary was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
    EXPECT_NE(std::string(error.what()).find("69999"), std::string::npos) << error.what();
  }
}

/// Takes a file of the run away while step 4 is told, and puts it back at step 5 if it `returns`.
class Borrower final : public TrainObserver {
 public:
  Borrower(fs::path file, bool returns)
      : file_(std::move(file)), aside_(file_.string() + ".aside"), returns_(returns) {}
  void planned(const TrainPlan&) override {}
  void stepped(const StepResult& result, const StepUse&) override {
    if (result.step == 4) fs::rename(file_, aside_);
    if (result.step == 5 && returns_) fs::rename(aside_, file_);
  }
  void evaluated(std::uint64_t, const Evaluation&) override {}
  void saved(std::uint64_t, const fs::path&) override {}
  void noted(const std::string& text) override { notes_ += text + "\n"; }
  [[nodiscard]] const std::string& notes() const { return notes_; }

 private:
  fs::path file_, aside_;
  bool returns_;
  std::string notes_;
};

class FilesOfARun : public Data {
 protected:
  FilesOfARun() {
    request_.model = tiny_gpt2(1);
    request_.options = tiny_options();
    request_.options.state_home = config::StateHome::host;
    request_.options.commit_every = 2;
    request_.options.steps = 5;
    request_.data = scratch_.path();
    request_.run = scratch_.path() / "run";
  }

  TrainRequest request_;
  const std::atomic<int> interrupt_{0};
};

/// Step 3 commits step 2, and step 5 commits step 4: a step between them costs no call.
TEST_F(FilesOfARun, AreLookedForOnceACommit) {
  Borrower borrower(RunDirectory(request_.run).manifest(), /*returns=*/true);
  EXPECT_EQ(train(request_, borrower, interrupt_).last_step, 5U);
}

TEST_F(FilesOfARun, EndItAndItsLastCommitWhereTheyAreGone) {
  const fs::path manifest = RunDirectory(request_.run).manifest();
  Borrower thief(manifest, /*returns=*/false);
  EXPECT_THROW(static_cast<void>(train(request_, thief, interrupt_)), Error);
  const std::string lost = "the last step could not be committed either: " + manifest.string();
  EXPECT_NE(thief.notes().find(lost + " is gone"), std::string::npos) << thief.notes();
}

}  // namespace
}  // namespace spillway::engine::run_files_test
