// The files of a run that must not change behind its back.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "runtime/base/error.hpp"
#include "runtime/engine/run/directory.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine::run_directory_test {
namespace {

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void replace(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

constexpr RunId kId{{1, 2}};
constexpr data::FileStamp kStamp{
    .bytes = 1, .inode = 2, .modified_ns = -3, .changed_ns = 1'800'000'000'123'456'789};

class SealedFiles : public testing::Test {
 protected:
  SealedFiles() {
    run_.write_config({.id = kId,
                       .model = tiny_gpt2(),
                       .options = {},
                       .data = "some/text",
                       .identity = {.fingerprint = 7, .stamp = kStamp},
                       .device = {.name = "A GPU",
                                  .libraries = "cuBLASLt 130100",
                                  .algorithms = "{\"a\": 1}",
                                  .attention = "cuDNN eng2 eng6"}});
    run_.write_manifest({.id = kId,
                         .earlier_ids = {RunId{{3, 4}}},
                         .state_id = RunId{{3, 4}},
                         .state = {run_.in_manifest(run_.state()), "/elsewhere/state"},
                         .committed = true,
                         .directory = "/elsewhere/run",
                         .job = RunId{{5, 6}},
                         .renamed = RunId{{7, 8}}});
  }

  /// The error with which the run's two files are refused; internal if they are accepted.
  [[nodiscard]] ErrorCode refusal() const {
    try {
      static_cast<void>(run_.read());
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::internal;
  }

  /// Every file in turn: change(text, i) for each i below its size must be refused.
  template <class Change>
  void expect_refused(const Change& change) {
    for (const auto& path : {run_.config(), run_.manifest()}) {
      const std::string text = contents(path);
      for (std::size_t i = 0; i < text.size(); ++i) {
        std::string changed = text;
        change(changed, i);
        replace(path, changed);
        const ErrorCode code = refusal();
        ASSERT_TRUE(code == ErrorCode::corrupt_data || code == ErrorCode::not_supported)
            << path.filename() << " changed at " << i << ": " << changed;
      }
      replace(path, text);
    }
  }

  ScratchDirectory scratch_{"run-directory"};
  RunDirectory run_{scratch_.path()};
};

TEST_F(SealedFiles, SayWhatWasWritten) {
  const RunConfig config = run_.read_config();
  EXPECT_EQ(config.device.name, "A GPU");
  EXPECT_EQ(config.device.libraries, "cuBLASLt 130100");
  EXPECT_EQ(config.device.algorithms, "{\"a\": 1}");
  EXPECT_EQ(config.device.attention, "cuDNN eng2 eng6");
  EXPECT_EQ(config.data, "some/text");
  EXPECT_EQ(config.identity.fingerprint, 7U);
  EXPECT_EQ(config.identity.stamp, kStamp);
  EXPECT_EQ(config.model.width, tiny_gpt2().width);
  EXPECT_EQ(config.id, kId);
  const RunManifest manifest = run_.read_manifest();
  EXPECT_EQ(manifest.id, kId);
  EXPECT_TRUE(manifest.has_been(RunId{{3, 4}}));
  EXPECT_FALSE(manifest.has_been(RunId{{5, 6}}));
  EXPECT_EQ(manifest.state_id, (RunId{{3, 4}}));
  EXPECT_TRUE(manifest.committed);
  EXPECT_EQ(manifest.directory, "/elsewhere/run");
  EXPECT_FALSE(manifest.kept.has_value());
  EXPECT_EQ(manifest.job, (RunId{{5, 6}}));
  EXPECT_EQ(manifest.renamed, (RunId{{7, 8}}));
  EXPECT_FALSE(manifest.holds_its_state());
  EXPECT_EQ(run_.state_directories(manifest),
            std::vector<std::filesystem::path>({scratch_.path() / "state", "/elsewhere/state"}));
}

// A copy has a new id before its other ranks can name it.
TEST(ManifestOfTheFirstRank, LeadsThoseThatNameItAndUntilAllAreToldItsOldName) {
  RunManifest first{.id = RunId{{1, 2}}};
  EXPECT_TRUE(first.leads(RunId{{1, 2}}));
  EXPECT_TRUE(first.leads(RunId{})) << "of a run of old";
  EXPECT_FALSE(first.leads(RunId{{3, 4}}));
  first.renamed = RunId{{3, 4}};
  EXPECT_TRUE(first.leads(RunId{{3, 4}}));
  EXPECT_FALSE(first.leads(RunId{{5, 6}}));
}

TEST_F(SealedFiles, AreRefusedWithABitOfAnyByteFlipped) {
  expect_refused([](std::string& text, std::size_t i) {
    text[i] = static_cast<char>(text[i] ^ (1 << (i % 8)));
  });
}

TEST_F(SealedFiles, AreRefusedWithAnEndOrAByteMissing) {
  expect_refused([](std::string& text, std::size_t i) { text.resize(i); });
  expect_refused([](std::string& text, std::size_t i) { text.erase(i, 1); });
}

TEST_F(SealedFiles, OfTwoRunsAreRefusedUnlessOneIsACopyOfTheOther) {
  RunConfig config = run_.read_config();
  config.id = RunId{{3, 4}};
  run_.write_config(config);
  EXPECT_EQ(refusal(), ErrorCode::internal);
  config.id = RunId{{5, 6}};
  run_.write_config(config);
  EXPECT_EQ(refusal(), ErrorCode::corrupt_data);
}

TEST_F(SealedFiles, OfAnotherFormatAreRefusedAsSuch) {
  std::string text = contents(run_.manifest());
  text.replace(text.find("\"format\": 3"), 11, "\"format\": 2");
  replace(run_.manifest(), text);
  EXPECT_EQ(refusal(), ErrorCode::not_supported);
}

}  // namespace
}  // namespace spillway::engine::run_directory_test
