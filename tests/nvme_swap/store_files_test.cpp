// The files of a store: who may have them, what is replaced, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <fstream>
#include <optional>
#include <thread>

#include "nvme_swap/detail/swap_file.hpp"
#include "tests/nvme_swap/test_support.hpp"

namespace spillway::nvme_swap::store_files_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

class StoreFilesTest : public ::testing::Test {
 protected:
  StoreFilesTest() : options_(small_options(scratch_.path(), 2)) {
    options_.lock_patience = milliseconds{100};
  }
  [[nodiscard]] std::filesystem::path file(std::size_t index) const {
    return swap_file_path(options_.directories[index], options_.name, index);
  }
  void create(bool with_commit) {
    const auto store = TileStore::create(options_, layout_);
    write_step(*store, 1);
    if (with_commit) commit_step(*store, 1);
  }
  void put(const std::filesystem::path& path, const std::string& text, mode_t mode = 0600) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
  }

  ScratchDirectory scratch_;
  StoreOptions options_;
  StoreLayout layout_ = layout_of(3, 8_KiB);
};

TEST_F(StoreFilesTest, AreForThisUserOnlyAndFullyAllocated) {
  create(true);
  for (std::size_t i = 0; i < 2; ++i) {
    struct stat status {};
    ASSERT_EQ(::stat(file(i).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777U, 0600U);
    EXPECT_GE(status.st_blocks * 512, status.st_size);
  }
}

TEST_F(StoreFilesTest, AreRefusedToASecondUser) {
  const auto store = TileStore::create(options_, layout_);
  write_step(*store, 1);
  commit_step(*store, 1);
  const auto again = [&] { return TileStore::open(options_); };
  EXPECT_EQ(code_of(again), ErrorCode::busy);
  EXPECT_THAT(message_of(again), AllOf(HasSubstr(file(0).string()), HasSubstr("100 ms")));
  EXPECT_EQ(code_of([&] { return TileStore::create(options_, layout_); }), ErrorCode::busy);
  expect_step(*store, 1);
}

TEST_F(StoreFilesTest, AreRefusedToASecondProcess) {
  auto store = TileStore::create(options_, layout_);
  write_step(*store, 1);
  commit_step(*store, 1);
  const auto outcome_in_a_child = [&] {
    const pid_t child = ::fork();
    if (child == 0) {
      // Its own descriptions of the files, as a process of its own has; the inherited ones stay.
      try {
        static_cast<void>(TileStore::open(options_));
        ::_exit(0);
      } catch (const Error& error) {
        ::_exit(error.code() == ErrorCode::busy ? 7 : 1);
      }
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(outcome_in_a_child(), 7);
  expect_step(*store, 1);
  store.reset();
  EXPECT_EQ(outcome_in_a_child(), 0);
}

TEST_F(StoreFilesTest, AreLeftToTheProcessThatOpenedThem) {
  put(file(0), "");
  std::filesystem::remove(file(0));
  std::optional<detail::SwapFile> mine(detail::SwapFile::create_or_adopt(file(0), milliseconds{0}));
  const pid_t child = ::fork();
  if (child == 0) {
    mine.reset();
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(std::filesystem::exists(file(0)));
  EXPECT_EQ(code_of([&] { return detail::SwapFile::open_existing(file(0), milliseconds{0}); }),
            ErrorCode::busy);
}

TEST_F(StoreFilesTest, AreWaitedForWhileTheirLastUserEnds) {
  auto store = TileStore::create(options_, layout_);
  write_step(*store, 1);
  commit_step(*store, 1);
  options_.lock_patience = milliseconds{10'000};
  std::thread last_user([&store] {
    std::this_thread::sleep_for(milliseconds{100});
    store.reset();
  });
  expect_step(*TileStore::open(options_), 1);
  last_user.join();
}

TEST_F(StoreFilesTest, AreFreeAtOnceAfterTheStoreIsClosed) {
  options_.engine = EngineKind::uring;
  options_.lock_patience = milliseconds{0};
  create(true);
  for (int i = 0; i < 20; ++i) expect_step(*TileStore::open(options_), 1);
}

TEST_F(StoreFilesTest, OfACommittedRunAreNeverReplaced) {
  create(true);
  const auto again = [&] { return TileStore::create(options_, layout_); };
  EXPECT_EQ(code_of(again), ErrorCode::invalid_argument);
  EXPECT_THAT(message_of(again), HasSubstr("holds a committed step"));
  expect_step(*TileStore::open(options_), 1);
}

TEST_F(StoreFilesTest, LeftBeforeTheFirstCommitAreReplaced) {
  create(false);
  EXPECT_FALSE(TileStore::has_commit(options_));
  EXPECT_EQ(TileStore::content(options_), StoreContent::uncommitted);
  EXPECT_THAT(message_of([&] { return TileStore::open(options_); }),
              HasSubstr("holds no committed step"));
  layout_ = layout_of(5, 4_KiB);
  create(true);
  EXPECT_EQ(TileStore::open(options_)->layout().tiles, layout_.tiles);
}

TEST_F(StoreFilesTest, OfACreationThatWasCutOffAreReplaced) {
  put(file(0), "");
  put(file(1), std::string(20'000, '\0'));
  EXPECT_FALSE(TileStore::has_commit(options_));
  create(true);
  expect_step(*TileStore::open(options_), 1);
}

TEST_F(StoreFilesTest, OfSomebodyElseAreLeftAlone) {
  put(file(1), "");
  put(file(0), "my only copy");
  EXPECT_EQ(code_of([&] { return TileStore::create(options_, layout_); }), ErrorCode::corrupt_data);
  EXPECT_EQ(code_of([&] { return TileStore::has_commit(options_); }), ErrorCode::corrupt_data);
  std::ifstream kept(file(0));
  std::string text;
  std::getline(kept, text);
  EXPECT_EQ(text, "my only copy");
}

TEST_F(StoreFilesTest, OfAStoreWhoseFirstFileIsElsewhereAreLeftAlone) {
  create(true);
  StoreOptions other = options_;
  other.directories[0] = scratch_.path() / "elsewhere";
  EXPECT_THAT(message_of([&] { return TileStore::create(other, layout_); }),
              HasSubstr("belongs to a store whose first file is not"));
  EXPECT_FALSE(std::filesystem::exists(other.directories[0] / "tiles-0.swap"));
  expect_step(*TileStore::open(options_), 1);
}

TEST_F(StoreFilesTest, AreNotFollowedThroughLinksNorSharedWithOthers) {
  put(scratch_.path() / "target", "");
  std::filesystem::create_directories(options_.directories[0]);
  std::filesystem::create_symlink(scratch_.path() / "target", file(0));
  EXPECT_EQ(code_of([&] { return TileStore::create(options_, layout_); }), ErrorCode::io_error);
  EXPECT_EQ(std::filesystem::file_size(scratch_.path() / "target"), 0U);
  std::filesystem::remove(file(0));
  put(file(0), "", 0644);
  EXPECT_THAT(message_of([&] { return TileStore::create(options_, layout_); }),
              HasSubstr("mode is 644"));
  std::filesystem::remove(file(0));
  std::filesystem::create_hard_link(scratch_.path() / "target", file(0));
  EXPECT_THAT(message_of([&] { return TileStore::create(options_, layout_); }),
              HasSubstr("names 2"));
}

TEST_F(StoreFilesTest, ThatDoNotFitAreRefusedAndRemoved) {
  const auto huge = [&] {
    return TileStore::create(options_, layout_of(2, Bytes{1} * (1ULL << 44)));
  };
  EXPECT_EQ(code_of(huge), ErrorCode::does_not_fit);
  EXPECT_THAT(message_of(huge), AllOf(HasSubstr("needs 64"), HasSubstr("are available")));
  EXPECT_FALSE(std::filesystem::exists(file(0)));
  EXPECT_FALSE(std::filesystem::exists(file(1)));
}

TEST_F(StoreFilesTest, AreRemovedOnCloseIfAsked) {
  options_.remove_on_close = true;
  create(true);
  EXPECT_FALSE(std::filesystem::exists(file(0)));
  EXPECT_FALSE(std::filesystem::exists(file(1)));
}

TEST_F(StoreFilesTest, ThatWereNeverCommittedAreRemovedIfNobodyUsesThem) {
  options_.lock_patience = milliseconds{0};
  TileStore::remove_uncommitted(options_);
  EXPECT_FALSE(std::filesystem::exists(file(0)));
  create(false);
  {
    const auto used = detail::SwapFile::open_existing(file(0), milliseconds{0});
    EXPECT_EQ(code_of([&] { TileStore::remove_uncommitted(options_); }), ErrorCode::busy);
  }
  EXPECT_TRUE(std::filesystem::exists(file(1)));
  TileStore::remove_uncommitted(options_);
  EXPECT_FALSE(std::filesystem::exists(file(0)));
  EXPECT_FALSE(std::filesystem::exists(file(1)));
  create(true);
  EXPECT_EQ(code_of([&] { TileStore::remove_uncommitted(options_); }), ErrorCode::invalid_argument);
  expect_step(*TileStore::open(options_), 1);
}

TEST_F(StoreFilesTest, AreMadeAnewWhenTheirLastUserRemovesThem) {
  options_.remove_on_close = true;
  auto store = TileStore::create(options_, layout_);
  options_.remove_on_close = false;
  options_.lock_patience = milliseconds{10'000};
  std::thread last_user([&store] {
    std::this_thread::sleep_for(milliseconds{50});
    store.reset();
  });
  create(true);
  last_user.join();
  expect_step(*TileStore::open(options_), 1);
}

TEST_F(StoreFilesTest, AreRemovedIfTheirHeadersCannotBeWritten) {
  options_.adapt = [](std::unique_ptr<IoEngine> inner, const EngineOptions& engine_options) {
    auto engine = std::make_unique<FailingEngine>(std::move(inner), engine_options);
    engine->arm({.first = 4});
    return engine;
  };
  EXPECT_EQ(code_of([&] { return TileStore::create(options_, layout_); }), ErrorCode::io_error);
  EXPECT_FALSE(std::filesystem::exists(file(0)));
  EXPECT_FALSE(std::filesystem::exists(file(1)));
}

TEST_F(StoreFilesTest, AreCheckedForOrderAndCompleteness) {
  create(true);
  StoreOptions fewer = options_;
  fewer.directories.pop_back();
  EXPECT_THAT(message_of([&] { return TileStore::open(fewer); }),
              HasSubstr("file 0 of a store of 2, not file 0 of 1"));
  std::filesystem::resize_file(file(1), 8192);
  EXPECT_THAT(message_of([&] { return TileStore::open(options_); }),
              AllOf(HasSubstr("tiles-1.swap"), HasSubstr("has 8192 bytes where")));
  std::filesystem::remove(file(1));
  EXPECT_EQ(code_of([&] { return TileStore::open(options_); }), ErrorCode::corrupt_data);
}

TEST_F(StoreFilesTest, SayWhatTheyHoldToWhoeverStartsARun) {
  EXPECT_EQ(TileStore::content(options_), StoreContent::nothing);
  put(file(0), "");
  EXPECT_EQ(TileStore::content(options_), StoreContent::unfinished);
  create(false);
  EXPECT_EQ(TileStore::content(options_), StoreContent::uncommitted);
  create(true);
  EXPECT_EQ(TileStore::content(options_), StoreContent::committed);
  options_.owner = RunId{{1, 2}};
  EXPECT_EQ(code_of([&] { return TileStore::content(options_); }), ErrorCode::corrupt_data);
}

TEST_F(StoreFilesTest, ThatWereCommittedAndAreGoneAreNamedWithTheRemedy) {
  create(true);
  for (const std::size_t index : {std::size_t{0}, std::size_t{1}}) {
    const std::filesystem::path aside = file(index).string() + ".aside";
    const auto expect_refused = [&](const char* cause) {
      const auto open = [&] { return TileStore::open(options_); };
      EXPECT_EQ(code_of(open), ErrorCode::corrupt_data) << cause;
      EXPECT_THAT(message_of(open), AllOf(HasSubstr(file(index).string()), HasSubstr(cause),
                                          HasSubstr("mount the drive")));
    };
    std::filesystem::rename(file(index), aside);
    expect_refused("is not there");
    put(file(index), "");
    expect_refused("is empty");
    put(file(index), std::string(8192, '\0'));
    expect_refused("its first page is blank");
    std::filesystem::rename(aside, file(index));
  }
  const std::filesystem::path away = scratch_.path() / "unmounted";
  std::filesystem::rename(options_.directories[0], away);
  EXPECT_EQ(code_of([&] { return TileStore::open(options_); }), ErrorCode::corrupt_data);
  std::filesystem::rename(away, options_.directories[0]);
  expect_step(*TileStore::open(options_), 1);
}

TEST_F(StoreFilesTest, WithACommitAndABlankHeaderAreNotTakenForACreationThatWasCutOff) {
  create(true);
  {
    std::fstream first(file(0), std::ios::in | std::ios::out | std::ios::binary);
    first << std::string(kPageBytes, '\0');
  }
  EXPECT_EQ(code_of([&] { return TileStore::content(options_); }), ErrorCode::corrupt_data);
  const auto again = [&] { return TileStore::create(options_, layout_); };
  EXPECT_EQ(code_of(again), ErrorCode::corrupt_data);
  EXPECT_THAT(message_of(again), HasSubstr("holds a committed step, and its first page is blank"));
}

TEST_F(StoreFilesTest, AreMissedWhileTheStoreIsOpen) {
  create(true);
  const auto store = TileStore::open(options_);
  const auto look = [&] { return store->check_present(), 0; };
  EXPECT_EQ(look(), 0);
  const auto expect_missed = [&](const char* cause) {
    EXPECT_EQ(code_of(look), ErrorCode::corrupt_data) << cause;
    EXPECT_THAT(message_of(look), AllOf(HasSubstr(file(1).string()), HasSubstr(cause)));
  };
  const std::filesystem::path aside = file(1).string() + ".aside";
  std::filesystem::rename(file(1), aside);
  expect_missed("was removed while the run used it");
  std::filesystem::copy_file(aside, file(1));
  expect_missed("was replaced by another file");
  std::filesystem::rename(aside, file(1));
  EXPECT_EQ(look(), 0);
  const auto bytes = std::filesystem::file_size(file(1));
  std::filesystem::resize_file(file(1), 8192);
  expect_missed("was cut to 8192 bytes of");
  std::filesystem::resize_file(file(1), bytes);
  std::filesystem::rename(options_.directories[1], scratch_.path() / "away");
  expect_missed("was removed while the run used it");
}

TEST_F(StoreFilesTest, OfTwoStoresAreNotMixed) {
  create(true);
  StoreOptions other = small_options(scratch_.path() / "other", 2);
  {
    const auto store = TileStore::create(other, layout_);
    write_step(*store, 1);
    commit_step(*store, 1);
  }
  other.directories[0] = options_.directories[0];
  EXPECT_THAT(message_of([&] { return TileStore::open(other); }),
              HasSubstr("belong to different stores"));
}

TEST_F(StoreFilesTest, OfAnotherRunAreRefusedByName) {
  const RunId mine{{1, 2}};
  const RunId other{{3, 4}};
  options_.owner = mine;
  create(true);
  expect_step(*TileStore::open(options_), 1);
  options_.owner = other;
  const auto open = [&] { return TileStore::open(options_); };
  EXPECT_EQ(code_of(open), ErrorCode::corrupt_data);
  EXPECT_THAT(message_of(open), AllOf(HasSubstr(file(0).string()), HasSubstr(to_text(mine)),
                                      HasSubstr(to_text(other))));
  options_.owner.reset();
  expect_step(*TileStore::open(options_), 1);
}

TEST_F(StoreFilesTest, OfNobodyAreRefusedToARun) {
  create(true);
  options_.owner = RunId{{1, 2}};
  EXPECT_THAT(message_of([&] { return TileStore::open(options_); }),
              HasSubstr("belongs to no run, not to run 00000000000000010000000000000002"));
}

TEST_F(StoreFilesTest, NameTheirRunInEachOfThem) {
  options_.owner = RunId{{1, 2}};
  create(true);
  std::vector<std::filesystem::path> mine{file(0), file(1)};
  options_.directories = {scratch_.path() / "other0", scratch_.path() / "other1"};
  options_.owner = RunId{{3, 4}};
  create(true);
  std::filesystem::copy_file(mine[1], file(1), std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(message_of([&] { return TileStore::open(options_); }),
              AllOf(HasSubstr(file(1).string()), HasSubstr("belongs to run")));
}

TEST_F(StoreFilesTest, ShareADirectoryUnderTwoNames) {
  options_.name = "rank0";
  create(true);
  options_.name = "rank1";
  EXPECT_FALSE(TileStore::has_commit(options_));
  create(true);
  EXPECT_TRUE(TileStore::has_commit(options_));
}

}  // namespace
}  // namespace spillway::nvme_swap::store_files_test
