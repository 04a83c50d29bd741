#include "runtime/base/ticket.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/base/error.hpp"

namespace spillway::ticket_test {
namespace {

/// Remembers what it was asked; slots listed in `broken` fail.
struct RecordingSource final : TicketSource {
  bool ready(std::uint32_t slot) override {
    asked.push_back(slot);
    return is_ready;
  }
  void finish(std::uint32_t slot) override {
    finished.push_back(slot);
    if (slot == broken) throw Error(ErrorCode::io_error, "slot is broken", 5);
  }
  bool is_ready = false;
  std::uint32_t broken = 1000;
  std::vector<std::uint32_t> asked;
  std::vector<std::uint32_t> finished;
};

using Slots = std::vector<std::uint32_t>;

TEST(Ticket, AnEmptyOneIsReadyAndWaitsForNothing) {
  Ticket ticket;
  EXPECT_FALSE(ticket.pending());
  EXPECT_TRUE(ticket.ready());
  EXPECT_NO_THROW(ticket.wait());
}

TEST(Ticket, AsksItsSourceAndFinishesOnce) {
  RecordingSource source;
  {
    Ticket ticket(source, 7);
    EXPECT_TRUE(ticket.pending());
    EXPECT_FALSE(ticket.ready());
    source.is_ready = true;
    EXPECT_TRUE(ticket.ready());
    EXPECT_TRUE(ticket.pending());  // ready, and still attached
    ticket.wait();
    EXPECT_FALSE(ticket.pending());
    ticket.wait();
  }
  EXPECT_EQ(source.asked, (Slots{7, 7}));
  EXPECT_EQ(source.finished, (Slots{7}));
}

TEST(Ticket, WaitThrowsTheOperationsErrorAndDetaches) {
  RecordingSource source;
  source.broken = 3;
  Ticket ticket(source, 3);
  EXPECT_THROW(ticket.wait(), Error);
  EXPECT_FALSE(ticket.pending());
  EXPECT_NO_THROW(ticket.wait());
  EXPECT_EQ(source.finished, (Slots{3}));
}

TEST(Ticket, DestroyingAPendingOneWaitsAndLogsItsError) {
  RecordingSource source;
  source.broken = 4;
  ::testing::internal::CaptureStderr();
  { const Ticket ticket(source, 4); }
  const std::string logged = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(source.finished, (Slots{4}));
  EXPECT_NE(logged.find("slot is broken"), std::string::npos) << logged;
}

TEST(Ticket, MovingPassesTheOperationOn) {
  RecordingSource source;
  Ticket first(source, 1);
  Ticket second(std::move(first));
  EXPECT_FALSE(first.pending());  // NOLINT(bugprone-use-after-move): the moved-from state
  EXPECT_TRUE(second.pending());
  EXPECT_TRUE(source.finished.empty());
  Ticket third(source, 2);
  third = std::move(second);  // waits for slot 2 first
  EXPECT_EQ(source.finished, (Slots{2}));
  third.wait();
  EXPECT_EQ(source.finished, (Slots{2, 1}));
}

}  // namespace
}  // namespace spillway::ticket_test
