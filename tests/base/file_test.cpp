#include "runtime/base/file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <future>
#include <thread>

#include "runtime/base/error.hpp"
#include "tests/support/temporary_directory.hpp"

namespace spillway::file_test {
namespace {

namespace fs = std::filesystem;
using test_support::TemporaryDirectory;

std::size_t entries_in(const fs::path& directory) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

TEST(FileDescriptor, ClosesOnceAndMoves) {
  FileDescriptor first = open_file("/dev/null", O_RDONLY);
  const int number = first.get();
  EXPECT_NE(::fcntl(number, F_GETFD) & FD_CLOEXEC, 0);
  FileDescriptor second(std::move(first));
  EXPECT_FALSE(first.is_open());  // NOLINT(bugprone-use-after-move): the moved-from state
  EXPECT_EQ(second.get(), number);
  second = open_file("/dev/null", O_RDONLY);
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
  second.close();
  EXPECT_FALSE(second.is_open());
  second.close();
}

TEST(OpenFile, NamesThePathAndTheReason) {
  try {
    (void)open_file("/nonexistent/file", O_RDONLY);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io_error);
    EXPECT_EQ(error.native(), ENOENT);
    EXPECT_NE(std::string(error.what()).find("/nonexistent/file"), std::string::npos);
  }
}

TEST(LeadsTo, KnowsAFileThatWasReplacedFromOneThatCannotBeSeen) {
  const TemporaryDirectory scratch;
  const fs::path path = scratch.path() / "file";
  const FileDescriptor file = open_file(path, O_RDWR | O_CREAT);
  EXPECT_TRUE(is_there(path));
  EXPECT_TRUE(leads_to(path, file.get()));
  fs::rename(path, scratch.path() / "moved");
  EXPECT_FALSE(is_there(path));
  EXPECT_FALSE(leads_to(path, file.get()));
  const FileDescriptor other = open_file(path, O_RDWR | O_CREAT);
  EXPECT_TRUE(is_there(path));
  EXPECT_FALSE(leads_to(path, file.get()));
  EXPECT_FALSE(is_there(path / "below"));
  EXPECT_FALSE(leads_to(path / "below", file.get()));

  const fs::path loop = scratch.path() / "loop";
  fs::create_symlink(loop, loop);
  for (const auto& ask : {std::function([&] { return is_there(loop / "file"); }),
                          std::function([&] { return leads_to(loop / "file", file.get()); })}) {
    try {
      EXPECT_FALSE(ask());
      ADD_FAILURE() << "nobody knows what is behind a link to itself";
    } catch (const Error& error) {
      EXPECT_EQ(error.native(), ELOOP);
      EXPECT_NE(std::string(error.what()).find(loop / "file"), std::string::npos) << error.what();
    }
  }
}

TEST(ReadTextFile, ReadsExactlyTheFile) {
  const TemporaryDirectory directory;
  for (const std::size_t size : {0U, 1U, 4095U, 4096U, 4097U, 100'000U}) {
    std::string text(size, 'x');
    if (size > 0) text.back() = '\0';
    directory.write("file", text);
    EXPECT_EQ(read_text_file(directory.path() / "file", Bytes{size}), text);
  }
}

TEST(ReadTextFile, ReadsFilesWhoseSizeTheSystemDoesNotTell) {
  const std::string status = read_text_file("/proc/self/status", 1_MiB);
  EXPECT_EQ(status.rfind("Name:", 0), 0U);
  EXPECT_EQ(status.back(), '\n');
}

TEST(ReadTextFile, RefusesMoreThanTheLimitByName) {
  const TemporaryDirectory directory;
  directory.write("file", "12345");
  try {
    (void)read_text_file(directory.path() / "file", 4_B);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("5 bytes; at most 4"), std::string::npos)
        << error.what();
  }
}

TEST(ReadTextFile, RefusesWhatIsNoRegularFileByWhatItIs) {
  const TemporaryDirectory directory;
  const fs::path pipe = directory.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  // Reading a device or waiting for a pipe's writer would never end.
  for (const auto& [path, kind] :
       {std::pair{fs::path("/dev/zero"), "a device"}, std::pair{directory.path(), "a directory"},
        std::pair{pipe, "a pipe"}}) {
    try {
      (void)read_text_file(path, 10_KiB);
      ADD_FAILURE() << "nothing was thrown for " << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(kind), std::string::npos) << error.what();
    }
  }
}

TEST(WriteFileAtomically, CreatesAndReplacesAndLeavesNothingBeside) {
  const TemporaryDirectory directory;
  const fs::path file = directory.path() / "file";
  write_file_atomically(file, "first");
  EXPECT_EQ(read_text_file(file, 1_KiB), "first");
  write_file_atomically(file, std::string(100'000, 'y'));
  EXPECT_EQ(read_text_file(file, 1_MiB), std::string(100'000, 'y'));
  write_file_atomically(file, "");
  EXPECT_EQ(read_text_file(file, 1_MiB), "");
  EXPECT_EQ(entries_in(directory.path()), 1U);
}

TEST(WriteFileAtomically, LeavesTheOldFileAloneWhenItFails) {
  const TemporaryDirectory directory;
  const fs::path file = directory.path() / "file";
  write_file_atomically(file, "old");
  // The disk is full: a limit on file size is the portable way to make write fail.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  int native = 0;
  try {
    write_file_atomically(file, std::string(10'000, 'n'));
  } catch (const Error& error) {
    native = error.native();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(native, EFBIG);
  EXPECT_EQ(read_text_file(file, 1_KiB), "old");
  EXPECT_EQ(entries_in(directory.path()), 1U);
}

TEST(WriteFileAtomically, CannotReplaceADirectoryAndSaysSo) {
  const TemporaryDirectory directory;
  fs::create_directories(directory.path() / "taken" / "inner");
  EXPECT_THROW(write_file_atomically(directory.path() / "taken", "text"), Error);
  EXPECT_THROW(write_file_atomically(directory.path() / "absent" / "file", "text"), Error);
  EXPECT_EQ(entries_in(directory.path()), 1U);
}

TEST(WriteFileAtomically, PassesTheLeftoversOfACrashedProcess) {
  const TemporaryDirectory directory;
  directory.write(".file." + std::to_string(::getpid()) + ".0.tmp", "half of a fi");
  write_file_atomically(directory.path() / "file", "whole");
  EXPECT_EQ(read_text_file(directory.path() / "file", 1_KiB), "whole");
}

TEST(WriteFileAtomically, ReadersSeeOneVersionOrTheOtherWhole) {
  const TemporaryDirectory directory;
  const fs::path file = directory.path() / "file";
  const std::string a(50'000, 'a');
  const std::string b(70'000, 'b');
  write_file_atomically(file, a);
  std::thread writer([&] {
    for (int i = 0; i < 50; ++i) write_file_atomically(file, i % 2 == 0 ? b : a);
  });
  for (int i = 0; i < 500; ++i) {
    const std::string seen = read_text_file(file, 1_MiB);
    EXPECT_TRUE(seen == a || seen == b);
  }
  writer.join();
}

TEST(WriteFileAtomically, WritesBesideAPathWithoutADirectory) {
  const TemporaryDirectory directory;
  const fs::path before = fs::current_path();
  fs::current_path(directory.path());
  write_file_atomically("plain", "text");
  fs::current_path(before);
  EXPECT_EQ(read_text_file(directory.path() / "plain", 1_KiB), "text");
}

TEST(MadeDirectories, GoWithTheirOwnerUnlessTheyAreKeptOrUsed) {
  const TemporaryDirectory directory;
  const fs::path deep = directory.path() / "a/b/c/";
  {
    MadeDirectories made;
    made.make(deep);
    EXPECT_TRUE(fs::is_directory(deep));
  }
  EXPECT_FALSE(fs::exists(directory.path() / "a"));
  {
    MadeDirectories made;
    made.make(deep);
    directory.write("a/b/file", "used");
  }
  EXPECT_FALSE(fs::exists(deep));
  EXPECT_TRUE(fs::exists(directory.path() / "a/b/file"));
  {
    MadeDirectories made;
    made.make(deep);
    made.keep();
  }
  EXPECT_TRUE(fs::is_directory(deep));
  MadeDirectories made;
  EXPECT_THROW(made.make(directory.path() / "a/b/file/d"), Error);
  fs::create_symlink("nowhere", directory.path() / "link");
  EXPECT_THROW(made.make(directory.path() / "link"), Error);
  EXPECT_THROW(made.make(directory.path() / "link/"), Error);
}

// Two starts of a job, one of which takes back what it has made.
TEST(MadeDirectories, ThoseThatAnotherTakesBackAreMadeAgain) {
  const TemporaryDirectory directory;
  const auto make_and_remove = [&] {
    for (int i = 0; i < 2000; ++i) {
      MadeDirectories made;
      made.make(directory.path() / "a/b");
    }
  };
  auto other = std::async(std::launch::async, make_and_remove);
  EXPECT_NO_THROW(make_and_remove());
  EXPECT_NO_THROW(other.get());
}

}  // namespace
}  // namespace spillway::file_test
