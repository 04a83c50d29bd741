#include "runtime/data/prepare.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <string>
#include <vector>

#include "runtime/data/token_file.hpp"
#include "runtime/data/tokenizer.hpp"
#include "tests/data/scratch.hpp"
#include "tests/support/failing_file_call.hpp"

namespace spillway::data::prepare_test {
namespace {

using test::contents;
using test::error_of;
using test::packed;
using test::Scratch;
using testing::HasSubstr;

std::string text_of(const std::filesystem::path& directory, const char* name) {
  const Meta meta = load_meta(directory / "meta.json");
  const TokenFile file(directory / name, meta.dtype);
  std::vector<std::int32_t> tokens(file.size());
  file.read(0, tokens, meta.vocab_size);
  return Tokenizer(meta).decode(tokens);
}

std::vector<std::string> names_in(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

TEST(PrepareTokens, WritesBytesAsNanoGptWould) {
  const Scratch scratch;
  const PreparedData report = prepare_tokens({.texts = {scratch.write("t", "hello worl\xff")},
                                              .output = scratch / "out" / "deep",
                                              .tokenizer = TextTokenizer::bytes,
                                              .validation_fraction = 0.1});
  EXPECT_EQ(report.train_tokens, 9U);  // int(11 * 0.9)
  EXPECT_EQ(report.validation_tokens, 2U);
  const std::filesystem::path out = scratch / "out" / "deep";
  EXPECT_EQ(contents(out / "train.bin"),
            packed<std::uint16_t>({'h', 'e', 'l', 'l', 'o', ' ', 'w', 'o', 'r'}));
  EXPECT_EQ(contents(out / "val.bin"), packed<std::uint16_t>({'l', 0xff}));
  EXPECT_EQ(load_meta(out / "meta.json"), (Meta{TokenType::uint16, 256, "bytes", {}}));
}

TEST(PrepareTokens, CharsGetTheRankOfTheirCodePoint) {
  const Scratch scratch;
  const PreparedData report = prepare_tokens(
      {.texts = {scratch.write("a", "b\u20aca"), scratch.write("b", "a\U0001F600b\n")},
       .output = scratch / "out",
       .validation_fraction = 0.25});
  EXPECT_EQ(report.meta.characters, (std::u32string{U'\n', U'a', U'b', U'\u20ac', U'\U0001F600'}));
  EXPECT_EQ(contents(scratch / "out/train.bin"), packed<std::uint16_t>({2, 3, 1, 1, 4}));
  EXPECT_EQ(contents(scratch / "out/val.bin"), packed<std::uint16_t>({2, 0}));
  EXPECT_EQ(text_of(scratch / "out", "train.bin"), "b\u20acaa\U0001F600");
}

TEST(PrepareTokens, CharactersMayCrossTheBordersOfChunks) {
  const Scratch scratch;
  std::string text = "x";  // so that 3-byte characters lie across every border of 1 MiB
  while (text.size() < (3 << 20)) text += "\u20ac";
  prepare_tokens({.texts = {scratch.write("t", text)}, .output = scratch / "out"});
  EXPECT_EQ(text_of(scratch / "out", "train.bin") + text_of(scratch / "out", "val.bin"), text);
}

TEST(PrepareTokens, ALargeVocabularyTakesUint32) {
  const Scratch scratch;
  std::string text;
  for (char32_t character = 0x20; character < 0x11000; ++character) {
    if (character >= 0xd800 && character < 0xe000) continue;
    std::string one = Tokenizer(Meta{TokenType::uint16, 1, "chars", {character}})
                          .decode(std::vector<std::int32_t>{0});
    text += one;
  }
  const PreparedData report =
      prepare_tokens({.texts = {scratch.write("t", text)}, .output = scratch / "out"});
  EXPECT_EQ(report.meta.vocab_size, 0x11000U - 0x20 - 0x800);
  EXPECT_EQ(report.meta.dtype, TokenType::uint32);
  EXPECT_EQ(text_of(scratch / "out", "train.bin") + text_of(scratch / "out", "val.bin"), text);
}

TEST(PrepareTokens, WithoutAHeldOutPartThereIsNoValidationFile) {
  const Scratch scratch;
  PrepareOptions options{.texts = {scratch.write("t", "hello")}, .output = scratch / "out"};
  options.validation_fraction = 0.5;
  prepare_tokens(options);
  options.validation_fraction = 0;
  options.existing = ExistingOutput::replace;
  EXPECT_EQ(prepare_tokens(options).validation_tokens, 0U);
  EXPECT_THAT(names_in(scratch / "out"), testing::UnorderedElementsAre("train.bin", "meta.json"));
}

TEST(PrepareTokens, RefusesToReplaceUnlessAsked) {
  const Scratch scratch;
  PrepareOptions options{.texts = {scratch.write("t", "first text")}, .output = scratch / "out"};
  prepare_tokens(options);
  const std::string before = contents(scratch / "out/train.bin");
  options.texts = {scratch.write("u", "second text")};
  const Error error = error_of([&] { prepare_tokens(options); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), HasSubstr("meta.json exists"));
  EXPECT_EQ(contents(scratch / "out/train.bin"), before);
  options.existing = ExistingOutput::replace;
  prepare_tokens(options);
  EXPECT_EQ(text_of(scratch / "out", "train.bin"), "second te");
}

TEST(PrepareTokens, AFailureLeavesTheOldFilesAndNoNewOnes) {
  const Scratch scratch;
  PrepareOptions options{.texts = {scratch.write("t", "first text")}, .output = scratch / "out"};
  prepare_tokens(options);
  options.existing = ExistingOutput::replace;
  options.texts = {scratch.write("good", "good"), scratch.write("bad", "bad\xff")};
  const Error error = error_of([&] { prepare_tokens(options); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
  EXPECT_THAT(error.what(), HasSubstr("bad is not valid UTF-8 at byte 3"));
  EXPECT_THAT(names_in(scratch / "out"),
              testing::UnorderedElementsAre("train.bin", "val.bin", "meta.json"));
  EXPECT_EQ(text_of(scratch / "out", "train.bin"), "first tex");
}

TEST(PrepareTokens, AReplacementCutShortLeavesNoMetaThatCouldLie) {
  const Scratch scratch;
  PrepareOptions options{.texts = {scratch.write("t", "first text")}, .output = scratch / "out"};
  prepare_tokens(options);
  // A directory in the place of val.bin stops it after train.bin was replaced.
  std::filesystem::remove(scratch / "out/val.bin");
  std::filesystem::create_directory(scratch / "out/val.bin");
  options.existing = ExistingOutput::replace;
  options.texts = {scratch.write("u", "other")};
  EXPECT_EQ(error_of([&] { prepare_tokens(options); }).code(), ErrorCode::io_error);
  EXPECT_FALSE(std::filesystem::exists(scratch / "out/meta.json"));
}

TEST(PrepareTokens, TokenFilesHaveTheirNamesForGoodBeforeMetaHas) {
  const Scratch scratch;
  const PrepareOptions options{.texts = {scratch.write("t", "some text")},
                               .output = scratch / "out",
                               .existing = ExistingOutput::replace};
  const std::string reason = "fsync " + options.output.string() + ":";
  bool failed = true;
  bool failed_there = false;
  for (int calls = 0; failed && !failed_there; ++calls) {
    test_support::FailingFileCall fault(calls);
    fault.watch(true);
    try {
      prepare_tokens(options);
    } catch (const Error& error) {
      fault.watch(false);
      const bool of_directory = std::string(error.what()).find(reason) != std::string::npos;
      failed_there = of_directory && !std::filesystem::exists(options.output / "meta.json");
    }
    fault.watch(false);
    failed = fault.has_failed();
  }
  EXPECT_TRUE(failed_there);
}

TEST(PrepareTokens, RefusesACharacterCutOffByTheEndOfAFile) {
  const Scratch scratch;
  const PrepareOptions options{
      .texts = {scratch.write("a", "a\xe2\x82"), scratch.write("b", "\xac")},
      .output = scratch / "out"};
  EXPECT_THAT(error_of([&] { prepare_tokens(options); }).what(),
              HasSubstr("a is not valid UTF-8 at byte 3"));
}

TEST(PrepareTokens, RefusesWhatCannotBeSplitOrRead) {
  const Scratch scratch;
  const auto code = [&](const std::filesystem::path& text, double fraction) {
    const PrepareOptions options{
        .texts = {text}, .output = scratch / "out", .validation_fraction = fraction};
    return error_of([&] { prepare_tokens(options); }).code();
  };
  const std::filesystem::path text = scratch.write("t", "some text");
  EXPECT_EQ(code(scratch.write("empty", ""), 0.1), ErrorCode::invalid_argument);
  EXPECT_EQ(code(scratch.write("one", "1"), 0.1), ErrorCode::invalid_argument);
  for (const double fraction : {1.0, -0.1, std::nan(""), 1e-300}) {
    EXPECT_EQ(code(text, fraction), ErrorCode::invalid_argument) << fraction;
  }
  EXPECT_EQ(code(scratch / "missing", 0.1), ErrorCode::io_error);
  ASSERT_EQ(::mkfifo((scratch / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(code(scratch / "pipe", 0.1), ErrorCode::invalid_argument);
  const PrepareOptions nothing{.texts = {}, .output = scratch / "out"};
  EXPECT_EQ(error_of([&] { prepare_tokens(nothing); }).code(), ErrorCode::invalid_argument);
}

TEST(PrepareTokens, RefusesADirectoryThatAnotherProcessWrites) {
  const Scratch scratch;
  const int descriptor = ::open((scratch / "").c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_GE(descriptor, 0);
  ASSERT_EQ(::flock(descriptor, LOCK_EX), 0);
  const PrepareOptions options{.texts = {scratch.write("t", "some text")}, .output = scratch / ""};
  EXPECT_EQ(error_of([&] { prepare_tokens(options); }).code(), ErrorCode::busy);
  ::close(descriptor);
  prepare_tokens(options);
}

TEST(PrepareTokens, DoesNotFollowALinkPlantedInTheOutput) {
  const Scratch scratch;
  const std::filesystem::path victim = scratch.write("victim", "precious");
  std::filesystem::create_directory(scratch / "out");
  std::filesystem::create_symlink(victim, scratch / "out/.train.bin.partial");
  std::filesystem::create_symlink(victim, scratch / "out/train.bin");
  PrepareOptions options{.texts = {scratch.write("t", "some text")}, .output = scratch / "out"};
  EXPECT_THROW(prepare_tokens(options), Error);
  options.existing = ExistingOutput::replace;
  prepare_tokens(options);
  EXPECT_EQ(contents(victim), "precious");
}

TEST(PrepareTokens, AWriteThatFailsIsReportedAndCleanedUp) {
  // A file size limit stands for the full disk: write() fails halfway with EFBIG.
  const Scratch scratch;
  const PrepareOptions options{.texts = {scratch.write("t", std::string(4 << 20, 'a'))},
                               .output = scratch / "out"};
  struct ::rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const struct ::rlimit limit {
    3 << 20, before.rlim_max
  };
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Error error = error_of([&] { prepare_tokens(options); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(error.code(), ErrorCode::io_error);
  EXPECT_EQ(error.native(), EFBIG);
  EXPECT_THAT(error.what(), HasSubstr("train.bin"));
  EXPECT_TRUE(names_in(scratch / "out").empty());
}

}  // namespace
}  // namespace spillway::data::prepare_test
