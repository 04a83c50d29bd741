// The files of a run that must not change behind its back.
#include "runtime/engine/run_directory.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "runtime/base/error.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine {
namespace {

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void replace(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

class SealedFiles : public testing::Test {
 protected:
  SealedFiles() {
    run_.write_config(
        {.model = tiny_gpt2(),
         .options = {},
         .data = "some/text",
         .data_fingerprint = 7,
         .device = {.name = "A GPU", .libraries = "cuBLASLt 130100", .algorithms = "{\"a\": 1}"}});
    run_.write_manifest({run_.state(), "/elsewhere/state"});
  }

  /// The error with which the run's two files are refused; internal if they are accepted.
  [[nodiscard]] ErrorCode refusal() const {
    try {
      static_cast<void>(run_.read_config());
      static_cast<void>(run_.read_manifest());
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
  EXPECT_EQ(config.data, "some/text");
  EXPECT_EQ(config.data_fingerprint, 7U);
  EXPECT_EQ(config.model.width, tiny_gpt2().width);
  EXPECT_EQ(run_.read_manifest(),
            std::vector<std::filesystem::path>({scratch_.path() / "state", "/elsewhere/state"}));
}

TEST_F(SealedFiles, AreRefusedWithAnyBitFlipped) {
  for (int bit = 0; bit < 8; ++bit) {
    expect_refused([bit](std::string& text, std::size_t i) {
      text[i] = static_cast<char>(text[i] ^ (1 << bit));
    });
  }
}

TEST_F(SealedFiles, AreRefusedWithAnEndOrAByteMissing) {
  expect_refused([](std::string& text, std::size_t i) { text.resize(i); });
  expect_refused([](std::string& text, std::size_t i) { text.erase(i, 1); });
}

TEST_F(SealedFiles, OfAnotherFormatAreRefusedAsSuch) {
  std::string text = contents(run_.manifest());
  text.replace(text.find("\"format\": 2"), 11, "\"format\": 1");
  replace(run_.manifest(), text);
  EXPECT_EQ(refusal(), ErrorCode::not_supported);
}

}  // namespace
}  // namespace spillway::engine
