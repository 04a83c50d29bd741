#include "runtime/base/run_id.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace spillway::run_id_test {
namespace {

TEST(RunId, IsWrittenAs32HexDigitsAndReadBack) {
  const RunId id{{0x0123456789abcdefU, 0x00000000000000ffU}};
  EXPECT_EQ(to_text(id), "0123456789abcdef00000000000000ff");
  EXPECT_EQ(parse_run_id("0123456789abcdef00000000000000ff"), id);
}

TEST(RunId, IsNotReadFromAnyOtherText) {
  for (const char* text : {"", "0123456789abcdef", "0123456789abcdef00000000000000f",
                           "0123456789abcdef00000000000000ff0", "0123456789ABCDEF00000000000000ff",
                           "0123456789abcdef0x000000000000ff", "-123456789abcdef00000000000000ff",
                           "0123456789abcdef 0000000000000ff"}) {
    EXPECT_FALSE(parse_run_id(text)) << text;
  }
}

TEST(RunId, IsAnotherEveryTime) {
  std::set<std::string> texts;
  for (int i = 0; i < 100; ++i) {
    const RunId id = random_run_id();
    texts.insert(to_text(id));
    EXPECT_EQ(parse_run_id(to_text(id)), id);
  }
  EXPECT_EQ(texts.size(), 100U);
}

}  // namespace
}  // namespace spillway::run_id_test
