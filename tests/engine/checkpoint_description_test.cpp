// What parameters.json of a checkpoint says is read as it was written, and nothing else is.
#include "runtime/engine/embedded/checkpoint/checkpoint_description.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <new>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/base/error.hpp"
#include "runtime/engine/sealed_json.hpp"
#include "tests/engine/training_harness.hpp"
#include "tests/support/allocation_counter.hpp"

namespace spillway::engine::checkpoint_description_test {
namespace {

using test_support::FailingAllocation;

/// The file of a checkpoint, as nlohmann::json::dump(2) wrote it and XXH3-64 sealed it.
constexpr const char* kText = R"({
  "dtype": "fp32",
  "format": 3,
  "optimizers": [
    "adam",
    "adam"
  ],
  "parameters": [
    {
      "elements": 6,
      "group": 0,
      "name": "a \"b\"\\é"
    },
    {
      "elements": 2,
      "group": 1,
      "name": "c"
    }
  ],
  "state_format": "fp32",
  "tile_parameters": 2097152,
  "updates": [
    1,
    0
  ],
  "xxh3": "10b3d20a35c36d03"
}
)";

const CheckpointDescription kDescription{
    .dtype = "fp32",
    .state_format = "fp32",
    .tile_parameters = 2097152,
    .optimizers = {"adam", "adam"},
    .parameters = {{.name = "a \"b\"\\é", .elements = 6, .group = 0},
                   {.name = "c", .elements = 2, .group = 1}},
    .updates = {1, 0}};

class Description : public testing::Test {
 protected:
  [[nodiscard]] CheckpointDescription read(const std::string& text) const {
    std::ofstream(path_, std::ios::binary) << text;
    return read_description(path_);
  }
  /// Returns with which code a text is refused, or "none".
  [[nodiscard]] std::string refusal(const std::string& text) const {
    try {
      static_cast<void>(read(text));
    } catch (const Error& error) {
      return std::string(name_of(error.code()));
    }
    return "none";
  }
  /// Returns with which code a document with a key of a value is refused, whose checksum is right.
  [[nodiscard]] std::string refusal_of(const char* key, const nlohmann::json& value) const {
    nlohmann::json document = nlohmann::json::parse(kText);
    document.erase("xxh3");
    document[nlohmann::json::json_pointer(key)] = value;
    return refusal(sealed_text(path_, document.dump(2)));
  }

  ScratchDirectory scratch_{"description"};
  const std::filesystem::path path_ = scratch_.path() / "parameters.json";
};

TEST_F(Description, IsReadAndWrittenAsItAlwaysWas) {
  EXPECT_EQ(to_text(path_, kDescription), kText);
  const CheckpointDescription read = this->read(kText);
  EXPECT_EQ(read.parameters, kDescription.parameters);
  EXPECT_EQ(read.updates, kDescription.updates);
  EXPECT_EQ(to_text(path_, read), kText);
  EXPECT_EQ(to_text(read.parameters[0]), R"({"elements":6,"group":0,"name":"a \"b\"\\é"})");
}

TEST_F(Description, HasThePlacesOfParametersThatHaveThem) {
  CheckpointDescription description = kDescription;
  description.parameters[1].block = 3;
  description.parameters[1].first = 4096;
  EXPECT_EQ(read(to_text(path_, description)).parameters, description.parameters);
  EXPECT_EQ(to_text(description.parameters[1]),
            R"({"block":3,"elements":2,"first":4096,"group":1,"name":"c"})");
}

TEST_F(Description, IsTheTextOfADocument) {
  CheckpointDescription description = kDescription;
  description.parameters.back().block = description.parameters.back().first = 1;
  description.updates.clear();
  description.parameters.front().name = "\x01\n\t\x7f/ü";
  const std::string text = to_text(path_, description);
  const nlohmann::json document = nlohmann::json::parse(text);
  EXPECT_EQ(text, document.dump(2) + "\n");
  EXPECT_FALSE(document.contains("updates"));
  EXPECT_EQ(read(text).parameters, description.parameters);
  description.parameters.clear();
  EXPECT_EQ(to_text(path_, read(to_text(path_, description))), to_text(path_, description));
}

TEST_F(Description, IsRefusedWithAnyByteChangedOrCutOff) {
  const std::string text = kText;
  for (std::size_t at = 0; at < text.size(); ++at) {
    std::string changed = text;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    EXPECT_NE(refusal(changed), "none") << at;
    EXPECT_EQ(refusal(text.substr(0, at)), "corrupt_data") << at;
  }
  EXPECT_EQ(refusal(text + "\n"), "corrupt_data");
  std::string other = text;
  other.replace(other.find("3,"), 1, "12");
  EXPECT_EQ(refusal(other), "not_supported");
}

TEST_F(Description, IsRefusedIfItIsOfSomethingElse) {
  EXPECT_EQ(refusal_of("/tile_parameters", 4096), "none");
  EXPECT_EQ(refusal_of("/tile_parameters", -1), "corrupt_data");
  EXPECT_EQ(refusal_of("/tile_parameters", "4096"), "corrupt_data");
  EXPECT_EQ(refusal_of("/dtype", 3), "corrupt_data");
  EXPECT_EQ(refusal_of("/dtype", nullptr), "corrupt_data");
  EXPECT_EQ(refusal_of("/other", "x"), "corrupt_data");
  EXPECT_EQ(refusal_of("/other", nlohmann::json::object()), "corrupt_data");
  EXPECT_EQ(refusal_of("/dtype", {"fp32"}), "corrupt_data");
  EXPECT_EQ(refusal_of("/updates", {0.5}), "corrupt_data");
  EXPECT_EQ(refusal_of("/updates", {true}), "corrupt_data");
  EXPECT_EQ(refusal_of("/parameters/0/elements", "6"), "corrupt_data");
  EXPECT_EQ(refusal_of("/parameters/0/shape", {2, 3}), "corrupt_data");
  EXPECT_EQ(refusal(sealed_text(path_, "{\n  \"dtype\"\n}")), "corrupt_data");
}

TEST_F(Description, IsWrittenAndReadOrRefusedWithoutMemory) {
  if (!test_support::AllocationCounter::works()) GTEST_SKIP() << "a sanitizer owns operator new";
  int failed = 0;
  for (int successes = 0;; ++successes) {
    FailingAllocation fault(successes);
    try {
      fault.watch(true);
      const std::string text = to_text(path_, kDescription);
      fault.watch(false);
      std::ofstream(path_, std::ios::binary) << text;
      fault.watch(true);
      const CheckpointDescription read = read_description(path_);
      fault.watch(false);
      EXPECT_EQ(read.parameters, kDescription.parameters);
      break;
    } catch (const std::bad_alloc&) {
      ++failed;
    }
  }
  EXPECT_GT(failed, 40);
}

}  // namespace
}  // namespace spillway::engine::checkpoint_description_test
