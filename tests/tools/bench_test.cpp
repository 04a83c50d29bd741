// `spillway bench` from outside: small runs, their documents and their refusals.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/tools/program.hpp"

namespace spillway::testing {
namespace {

namespace fs = std::filesystem;

class Bench : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::path(::testing::TempDir()) / ("spillway_bench_" + std::to_string(::getpid()));
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  [[nodiscard]] Answer run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "bench");
    return Program(directory_, std::move(arguments)).wait();
  }

 private:
  fs::path directory_;
};

TEST_F(Bench, AdamReportsEveryFormatAgainstItsTraffic) {
  const Answer answer = run({"adam", "--size", "1Mi", "--repetitions", "3", "--threads", "1,2",
                             "--prefetch", "0", "--json"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const nlohmann::json document = answer.json();
  EXPECT_EQ(document["results"].size(), 8U);
  EXPECT_GT(document["fraction_of_limit"], 0.0);
  for (const auto& result : document["results"]) {
    EXPECT_EQ(result["parameters"], 1 << 20);
    EXPECT_TRUE(result["exact"]);
    EXPECT_GT(result["ns_per_parameter"], 0.0);
    EXPECT_NEAR(result["gb_per_s"].get<double>() * result["ns_per_parameter"].get<double>(),
                result["bytes_per_parameter"].get<double>(), 1e-6);
  }
  EXPECT_EQ(document["results"][0]["bytes_per_parameter"], 28.0);
}

TEST_F(Bench, AdamPrintsATableAndMeasuresDenormals) {
  const Answer answer = run({"adam", "--size", "64Ki", "--repetitions", "1", "--format", "fp32",
                             "--isa", "scalar", "--denormals"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_NE(answer.out.find("of limit"), std::string::npos);
  EXPECT_NE(answer.out.find("below the normal range"), std::string::npos);
}

TEST_F(Bench, AdamNamesWhatItDoesNotKnow) {
  for (const auto& [flag, value] : {std::pair{"--format", "fp8"}, std::pair{"--isa", "sse9"},
                                    std::pair{"--gradient", "int4"}}) {
    const Answer answer = run({"adam", "--size", "4Ki", flag, value});
    EXPECT_EQ(answer.exit_code, 2) << flag;
    EXPECT_NE(answer.err.find(value), std::string::npos) << answer.err;
  }
  EXPECT_EQ(run({"adam", "--format", "split", "--parameters", "fp16"}).exit_code, 2);
  EXPECT_EQ(run({}).exit_code, 2);
}

TEST_F(Bench, AdamSaysThatAPeerCannotBeRun) {
  const Answer answer = run({"adam", "--size", "4Ki", "--repetitions", "1", "--format", "fp32",
                             "--compare", "torch", "--python", "/nowhere/python"});
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_NE(answer.err.find("/nowhere/python"), std::string::npos);
}

}  // namespace
}  // namespace spillway::testing
