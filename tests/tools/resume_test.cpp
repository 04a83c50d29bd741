// A resume goes on with the data and the mathematics that the run began with, or not at all.
#include <gmock/gmock.h>

#include "tests/tools/cli_fixture.hpp"

namespace spillway::testing::resume_test {
namespace {

using ::testing::HasSubstr;

class Resume : public Cli {
 protected:
  /// Refused with this in the message, and with every line of the metrics left as it was.
  void expect_refused(const std::vector<std::string>& arguments, const std::string& reason) {
    const std::string before = read_all(directory_ / "run/metrics.jsonl");
    const Answer answer = run(arguments);
    EXPECT_NE(answer.exit_code, 0);
    EXPECT_THAT(answer.err, HasSubstr(reason));
    EXPECT_EQ(read_all(directory_ / "run/metrics.jsonl"), before);
  }
};

TEST_F(Resume, RefusesTrainingTokensThatAreNotTheRuns) {
  ASSERT_EQ(run(train("run", 3)).exit_code, 0);
  std::string tokens = read_all(directory_ / "data/train.bin");
  const std::string original = tokens;
  for (const std::size_t at : {std::size_t{0}, tokens.size() - 2}) {
    tokens = original;
    tokens[at] = static_cast<char>(tokens[at] ^ 1);
    write_all(path("data/train.bin"), tokens);
    expect_refused(train("run", 6, {"--resume"}), "the training tokens differ");
  }
  write_all(path("data/train.bin"), original.substr(0, original.size() - 2));
  expect_refused(train("run", 6, {"--resume"}), "the training tokens differ");
  write_all(path("data/train.bin"), original);
  EXPECT_EQ(run(train("run", 6, {"--resume"})).exit_code, 0);
}

TEST_F(Resume, RefusesAnotherClipping) {
  ASSERT_EQ(run(train("run", 3)).exit_code, 0);
  std::string config = kConfig;
  const std::string clipping = "\"gradient_clipping\": 1.0";
  config.replace(config.find(clipping), clipping.size(), "\"gradient_clipping\": 0.5");
  write_all(path("train.json"), config);
  expect_refused(train("run", 6, {"--resume"}), "gradient_clipping");
}

}  // namespace
}  // namespace spillway::testing::resume_test
