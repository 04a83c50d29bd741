// What the store promises about pending operations, limits, wrong calls and its files.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "tests/nvme_swap/test_support.hpp"

namespace spillway::nvme_swap::tile_store_rules_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

class StoreRules : public ::testing::Test {
 protected:
  StoreRules() : options_(small_options(scratch_.path())) { make_failing(options_, faults_); }

  Ticket write(TileStore& store, std::uint32_t tile, std::span<const std::byte> data) {
    return store.write(TileIndex{tile}, data, checksum_of(data));
  }
  void delay(IoOperation operation, milliseconds time) {
    faults_->arm(
        {.action = FaultAction::delay, .operation = operation, .count = 1000, .delay = time});
  }

  ScratchDirectory scratch_;
  StoreOptions options_;
  FailingEngine* faults_ = nullptr;
};

TEST_F(StoreRules, HoldsAWriteBackUntilTheCommitThatNeedsItsSlotEnds) {
  const auto store = TileStore::create(options_, layout_of(1, 8_KiB));
  for (const std::uint64_t step : {1U, 2U}) {
    write_step(*store, step);
    if (step == 1) commit_step(*store, step);
  }
  delay(IoOperation::flush, milliseconds{100});
  Ticket commit = store->commit(header_of(2));
  const std::uint64_t written = faults_->taken(IoOperation::write);
  const PageBuffer next = tile_content(8_KiB, 0, 3);
  Ticket late = write(*store, 0, next.bytes());
  EXPECT_FALSE(late.ready());
  EXPECT_EQ(faults_->taken(IoOperation::write), written) << "both slots are spoken for";
  expect_tile(*store, 0, 2);
  late.wait();
  EXPECT_TRUE(commit.ready());
  commit.wait();
  expect_tile(*store, 0, 3);
  EXPECT_EQ(store->committed()->step.value(), 2U);
}

TEST_F(StoreRules, WritesBesideTheCommitWithAThirdSlot) {
  options_.slots = 3;
  auto store = TileStore::create(options_, layout_of(2, 8_KiB));
  for (const std::uint64_t step : {1U, 2U}) {
    write_step(*store, step);
    commit_step(*store, step);
  }
  write_step(*store, 3);
  delay(IoOperation::flush, milliseconds{300});
  Ticket commit = store->commit(header_of(3));
  write_step(*store, 4);
  EXPECT_FALSE(commit.ready()) << "the writes did not wait for it";
  expect_step(*store, 4);
  commit.wait();
  expect_step(*store, 4);
  store.reset();
  store = TileStore::open(options_);
  expect_step(*store, 3);
}

TEST_F(StoreRules, OverwritesAnUncommittedVersion) {
  auto store = TileStore::create(options_, layout_of(2, 8_KiB));
  write_step(*store, 1);
  commit_step(*store, 1);
  for (std::uint64_t step = 2; step < 5; ++step) {
    write_step(*store, step);
    expect_step(*store, step);
  }
  delay(IoOperation::write, milliseconds{50});
  const PageBuffer next = tile_content(8_KiB, 0, 5);
  Ticket ticket = write(*store, 0, next.bytes());
  PageBuffer target(8192);
  EXPECT_THAT(message_of([&] { static_cast<void>(store->read(TileIndex{0}, target.bytes())); }),
              HasSubstr("being overwritten"));
  ticket.wait();
  expect_tile(*store, 0, 5);
  store.reset();
  expect_step(*TileStore::open(options_), 1);
}

TEST_F(StoreRules, DiscardsWhatIsNotCommitted) {
  const auto store = TileStore::create(options_, layout_of(2, 8_KiB));
  write_step(*store, 1);
  commit_step(*store, 1);
  write_step(*store, 2);
  const StoreCounters before = store->counters();
  store->discard(TileIndex{1});
  EXPECT_EQ(store->counters().written, before.written);
  expect_tile(*store, 0, 2);
  expect_tile(*store, 1, 1);
}

TEST_F(StoreRules, ACommitBeginsBeforeAnybodyAsksForIt) {
  const auto store = TileStore::create(options_, layout_of(1, 8_KiB));
  write_step(*store, 1);
  const std::uint64_t flushes = faults_->taken(IoOperation::flush);
  Ticket commit = store->commit(header_of(1));
  EXPECT_EQ(faults_->taken(IoOperation::flush), flushes + 1) << "that of the tile";
  commit.wait();
}

TEST_F(StoreRules, CommitsAStepThatWroteNothing) {
  auto store = TileStore::create(options_, layout_of(2, 8_KiB));
  write_step(*store, 1);
  commit_step(*store, 1);
  const std::uint64_t flushes = faults_->taken(IoOperation::flush);
  commit_step(*store, 2);
  EXPECT_EQ(faults_->taken(IoOperation::flush), flushes + 1) << "only the record needs one";
  store.reset();
  store = TileStore::open(options_);
  EXPECT_EQ(store->committed()->step.value(), 2U);
  expect_step(*store, 1);
}

TEST_F(StoreRules, RefusesACommitThatWouldMixSteps) {
  const auto store = TileStore::create(options_, layout_of(2, 8_KiB));
  write_step(*store, 1);
  delay(IoOperation::write, milliseconds{20});
  const PageBuffer next = tile_content(8_KiB, 1, 2);
  Ticket pending = write(*store, 1, next.bytes());
  EXPECT_THAT(message_of([&] { commit_step(*store, 2); }), HasSubstr("to be finished"));
  EXPECT_THAT(message_of([&] { static_cast<void>(write(*store, 1, next.bytes())); }),
              HasSubstr("already has a write pending"));
  pending.wait();
  faults_->arm({.operation = IoOperation::write, .error = ENOSPC});
  EXPECT_THAT(message_of([&] { write(*store, 1, next.bytes()).wait(); }),
              AllOf(HasSubstr("write of 8192 bytes at offset"), HasSubstr("tiles-0.swap"),
                    HasSubstr("No space left")));
  EXPECT_THAT(message_of([&] { commit_step(*store, 2); }),
              HasSubstr("last write of tile 1 failed"));
  write(*store, 1, next.bytes()).wait();
  commit_step(*store, 2);
  delay(IoOperation::flush, milliseconds{20});
  Ticket commit = store->commit(header_of(3));
  EXPECT_THAT(message_of([&] { commit_step(*store, 4); }), HasSubstr("is pending"));
  EXPECT_THAT(message_of([&] { store->discard(TileIndex{0}); }), HasSubstr("pending"));
}

TEST_F(StoreRules, IsClosedToWritesAfterAFailedCommit) {
  const auto store = TileStore::create(options_, layout_of(2, 8_KiB));
  write_step(*store, 1);
  faults_->arm({.operation = IoOperation::flush});
  EXPECT_EQ(code_of([&] { commit_step(*store, 1); }), ErrorCode::io_error);
  EXPECT_THAT(message_of([&] { commit_step(*store, 1); }), HasSubstr("since its commit failed"));
  EXPECT_THAT(message_of([&] { write_step(*store, 2); }), HasSubstr("Input/output error"));
  expect_step(*store, 1);
}

TEST_F(StoreRules, NamesTheLimitWhenTicketsRunOut) {
  options_.tickets = 3;
  const auto store = TileStore::create(options_, layout_of(4, 4_KiB));
  std::vector<PageBuffer> contents;
  for (std::uint64_t tile = 0; tile < 4; ++tile) contents.push_back(tile_content(4_KiB, tile, 1));
  std::vector<Ticket> tickets;
  for (std::uint32_t tile = 0; tile < 3; ++tile) {
    tickets.push_back(write(*store, tile, contents[tile].bytes()));
  }
  const auto fourth = [&] { write(*store, 3, contents[3].bytes()).wait(); };
  EXPECT_EQ(code_of(fourth), ErrorCode::does_not_fit);
  EXPECT_THAT(message_of(fourth), HasSubstr("all 3 tickets"));
  tickets.front().wait();
  fourth();
}

TEST_F(StoreRules, WaitsWhenAPendingTicketIsDestroyed) {
  const auto store = TileStore::create(options_, layout_of(1, 8_KiB));
  write_step(*store, 1);
  delay(IoOperation::read, milliseconds{50});
  PageBuffer target(8192);
  { const Ticket abandoned = store->read(TileIndex{0}, target.bytes()); }
  EXPECT_TRUE(same_bytes(target.bytes(), tile_content(8_KiB, 0, 1).bytes()));
}

TEST_F(StoreRules, RefusesWrongCalls) {
  const auto store = TileStore::create(options_, layout_of(2, 8_KiB));
  PageBuffer buffer(16384);
  const auto read = [&](std::uint32_t tile, std::size_t begin, std::size_t size) {
    return message_of([&] {
      static_cast<void>(store->read(TileIndex{tile}, buffer.bytes().subspan(begin, size)));
    });
  };
  EXPECT_THAT(read(2, 0, 8192), HasSubstr("tile 2 of a store with 2 tiles"));
  EXPECT_THAT(read(0, 0, 4096), HasSubstr("needs 8192 bytes"));
  EXPECT_THAT(read(0, 512, 8192), HasSubstr("aligned to 4096"));
  EXPECT_THAT(read(0, 0, 8192), HasSubstr("no version to read"));
  CommitHeader header;
  header.payload.resize(2049);
  EXPECT_EQ(code_of([&] { store->commit(header).wait(); }), ErrorCode::invalid_argument);
  for (const Bytes bytes : {0_B, 100_B}) {
    options_.name = "other";
    EXPECT_EQ(code_of([&] { return TileStore::create(options_, layout_of(1, bytes)); }),
              ErrorCode::invalid_argument);
  }
  options_.slots = 0;
  EXPECT_EQ(code_of([&] { return TileStore::create(options_, layout_of(1, 4_KiB)); }),
            ErrorCode::invalid_argument);
}

TEST_F(StoreRules, OneSlotIsWrittenOnceAndReadFromThenOn) {
  options_.slots = 1;
  {
    const auto store = TileStore::create(options_, layout_of(2, 8_KiB));
    write_step(*store, 1);
    commit_step(*store, 1);
    EXPECT_EQ(code_of([&] { write_step(*store, 2); }), ErrorCode::not_supported);
  }
  const auto store = TileStore::open(options_);
  expect_step(*store, 1);
  EXPECT_EQ(code_of([&] { write_step(*store, 2); }), ErrorCode::not_supported);
}

TEST_F(StoreRules, NamesFileTileAndChecksumsOfWrongData) {
  const auto store = TileStore::create(options_, layout_of(2, 8_KiB));
  write_step(*store, 1);
  PageBuffer data = tile_content(8_KiB, 1, 1);
  const std::string expected = fmt::format("{:016x}", checksum_of(data.bytes()));
  data.bytes()[8191] ^= std::byte{1};
  const auto verify = [&] { store->verify(TileIndex{1}, data.bytes()); };
  EXPECT_EQ(code_of(verify), ErrorCode::corrupt_data);
  EXPECT_THAT(message_of(verify),
              AllOf(HasSubstr("tile 1"), HasSubstr("tiles-0.swap"), HasSubstr(expected),
                    HasSubstr(fmt::format("{:016x}", checksum_of(data.bytes())))));
}

TEST_F(StoreRules, VerifiesOnAnyThread) {
  const auto store = TileStore::create(options_, layout_of(8, 8_KiB));
  write_step(*store, 1);
  std::vector<std::thread> threads;
  std::vector<PageBuffer> targets;
  targets.reserve(8);
  for (std::uint32_t tile = 0; tile < 8; ++tile) {
    targets.emplace_back(8192);
    store->read(TileIndex{tile}, targets.back().bytes()).wait();
    threads.emplace_back([&store, &target = targets.back(), tile] {
      store->verify(TileIndex{tile}, target.bytes());
    });
    // The control thread goes on meanwhile.
    if (tile > 0) continue;
    const PageBuffer next = tile_content(8_KiB, 7, 1);
    write(*store, 7, next.bytes()).wait();
    commit_step(*store, 1);
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(StoreRules, MakesProgressByPollingAlone) {
  WakeSignal wake;
  options_.wake = &wake;
  for (const EngineKind engine : kEngines) {
    options_.engine = engine;
    options_.name = name_of(engine);
    const auto store = TileStore::create(options_, layout_of(1, 96_KiB));
    const PageBuffer content = tile_content(96_KiB, 0, 1);
    const auto poll = [&](Ticket ticket) {
      const auto begin = std::chrono::steady_clock::now();
      while (!ticket.ready()) wake.wait_for(milliseconds{10'000});
      EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds{5000}) << "a wake was lost";
      ticket.wait();
    };
    poll(write(*store, 0, content.bytes()));
    poll(store->commit(header_of(1)));
    EXPECT_EQ(store->committed()->step.value(), 1U);
  }
}

TEST_F(StoreRules, MovesNoFasterThanTheThrottle) {
  options_.disk_gigabytes_per_second = 0.004;
  const auto store = TileStore::create(options_, layout_of(2, 96_KiB));
  const auto begin = std::chrono::steady_clock::now();
  write_step(*store, 1);
  // 2 x 98304 bytes at 4 MB/s are 49 ms.
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds{49});
  expect_step(*store, 1);
}

TEST_F(StoreRules, CommitsThePayloadThatIsAsLongAsMayBe) {
  const CommitHeader header{.step = StepIndex{7},
                            .payload = std::vector<std::byte>(2048, std::byte{9})};
  auto store = TileStore::create(options_, {});
  store->commit(header).wait();
  store.reset();
  EXPECT_EQ(TileStore::open(options_)->committed()->payload, header.payload);
}

TEST_F(StoreRules, WorksWithoutTiles) {
  auto store = TileStore::create(options_, {});
  commit_step(*store, 7);
  store.reset();
  EXPECT_EQ(TileStore::open(options_)->committed()->step.value(), 7U);
}

}  // namespace
}  // namespace spillway::nvme_swap::tile_store_rules_test
