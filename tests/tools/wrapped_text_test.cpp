#include "tools/cli/wrapped_text.hpp"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

namespace spillway::cli::wrapped_text_test {
namespace {

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

TEST(WrappedText, LeavesLinesThatAreNotTooLong) {
  const std::string text = "two  words\n\n  and a half \n";
  EXPECT_EQ(wrapped(text, 40), text);
  EXPECT_EQ(wrapped("no end", 40), "no end");
  EXPECT_EQ(wrapped("", 40), "");
}

TEST(WrappedText, PutsWhatIsTooLongBelowItsText) {
  EXPECT_EQ(wrapped("predicted  one two three four five six seven eight\n", 40),
            "predicted  one two three four five six\n"
            "           seven eight\n");
  EXPECT_EQ(wrapped("spillway: one two three four five six seven eight", 40),
            "spillway: one two three four five six\n"
            "    seven eight");
  EXPECT_EQ(wrapped("            one two three four five six seven", 40),
            "            one two three four five six\n"
            "            seven");
}

TEST(WrappedText, HasNoNarrowColumnOfText) {
  EXPECT_EQ(wrapped("  --a-long-flag UINT:POSITIVE   one two three four", 40),
            "--a-long-flag UINT:POSITIVE\n"
            "    one two three four");
  EXPECT_EQ(wrapped("                              one two three four", 40),
            "    one two three four");
}

TEST(WrappedText, KeepsEveryWordWholeInEveryWidth) {
  std::string text;
  for (std::size_t i = 0; i < 60; ++i) {
    text += std::string(i % 9, i % 2 == 0 ? 'a' : ' ') + (i % 7 == 0 ? "\n" : " ") + "ö";
  }
  for (std::size_t columns = 1; columns < 250; ++columns) {
    const std::string lines = wrapped(text, columns);
    EXPECT_EQ(words_of(lines), words_of(text));
    std::istringstream stream(lines);
    for (std::string line; std::getline(stream, line);) {
      std::size_t bytes_behind = 0;  // of a character's two
      for (const char c : line) bytes_behind += c == '\xb6' ? 1 : 0;
      EXPECT_LE(line.size() - bytes_behind, std::clamp<std::size_t>(columns, 40, 200));
    }
  }
  const std::string path(60, '/');
  EXPECT_EQ(wrapped("see " + path + " there", 40), "see\n    " + path + "\n    there");
}

}  // namespace
}  // namespace spillway::cli::wrapped_text_test
