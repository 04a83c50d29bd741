// What is particular to ranks that meet over TCP: who does not come, who should not have, and who
// goes while others wait.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/detail/silence.hpp"
#include "comm/tcp/proof.hpp"
#include "comm/tcp/rendezvous.hpp"
#include "comm/tcp/wire.hpp"
#include "runtime/base/error.hpp"
#include "tests/comm/tcp_ranks.hpp"

namespace spillway::comm::tcp_test {
namespace {

using detail::bytes_of;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

/// Returns the connection of a rank that rank 0 has admitted.
FileDescriptor seat_of(const OwnPort& port, std::uint32_t rank, std::uint32_t ranks) {
  const detail::Key key = detail::key_of("");
  FileDescriptor socket = connect(port);
  const detail::Hello hello = hello_of(rank, ranks);
  EXPECT_TRUE(detail::send_all(socket, bytes_of(hello), in_seconds(20)));
  detail::Challenge challenge;
  EXPECT_TRUE(detail::receive_all(socket, detail::writable_bytes_of(challenge), in_seconds(20)));
  const detail::Proof proof = detail::prove(key, detail::Side::caller, hello, challenge);
  EXPECT_TRUE(detail::send_all(socket, bytes_of(proof), in_seconds(20)));
  detail::Proof other;
  EXPECT_TRUE(detail::receive_all(socket, detail::writable_bytes_of(other), in_seconds(20)));
  EXPECT_TRUE(detail::is_proved(key, detail::Side::called, hello, challenge, other));
  return socket;
}

TEST(TcpRendezvous, NamesTheRanksThatDoNotCome) {
  const OwnPort port;
  const auto messages =
      failures_of({tcp_launch(0, 4, port), tcp_launch(2, 4, port)}, {.timeout_ms = 300});
  EXPECT_THAT(messages, Each(HasSubstr("of 4 ranks, 1, 3 have not come to 127.0.0.1 port")));
  EXPECT_THAT(messages[1], HasSubstr("rank 0 has abandoned the group"));
}

TEST(TcpRendezvous, SaysThatRankZeroIsNotThere) {
  const OwnPort port;
  EXPECT_THAT(failures_of({tcp_launch(1, 2, port)}, {.timeout_ms = 100})[0],
              AllOf(HasSubstr("rank 1 has not reached rank 0 within 0.1 s: nobody takes "
                              "connections at 127.0.0.1 port"),
                    HasSubstr("Connection refused")));
}

TEST(TcpRendezvous, OneOfTwoThatAreTheSameRankIsTurnedAway) {
  const OwnPort port;
  const auto start = [&port](std::uint32_t rank) {
    return std::async(std::launch::async,
                      [&port, rank] { return failures_of({tcp_launch(rank, 3, port)})[0]; });
  };
  auto zero = start(0);
  std::vector<std::future<std::string>> twins;
  twins.push_back(start(1));
  twins.push_back(start(1));
  constexpr std::chrono::milliseconds kGlance{1};
  while (twins[1].wait_for(kGlance) != std::future_status::ready) std::swap(twins[0], twins[1]);
  EXPECT_THAT(twins[1].get(), HasSubstr("two processes are rank 1"));
  EXPECT_EQ(start(2).get(), "");
  EXPECT_EQ(twins[0].get(), "");
  EXPECT_EQ(zero.get(), "");
}

TEST(TcpRendezvous, ARankThatWasToldAnotherNumberOfRanksIsTurnedAwayAndNamedIfItIsMissing) {
  const OwnPort port;
  auto zero = std::async(std::launch::async, [&] {
    return failures_of({tcp_launch(0, 3, port)}, {.timeout_ms = 1000})[0];
  });
  constexpr const char* kReason = "rank 2 was told that there are 4 ranks, and rank 0 that there";
  EXPECT_THAT(failures_of({tcp_launch(2, 4, port)})[0], HasSubstr(kReason));
  EXPECT_THAT(zero.get(), AllOf(HasSubstr("1, 2 have not come"), HasSubstr(kReason)));
}

TEST(TcpRendezvous, WhatCannotBeARankIsToldSoAndEndsNothing) {
  struct Wrong {
    const char* told;
    std::function<void(detail::Hello&)> make;
  };
  const std::vector<Wrong> wrongs = {
      {"one of them is rank 7 of 2", [](auto& hello) { hello.rank = 7; }},
      {"two processes are rank 0", [](auto& hello) { hello.rank = 0; }},
      {"of another version of Spillway", [](auto& hello) { hello.version = 1; }},
      {"from nowhere", [](auto& hello) { hello.key = detail::KeySource::environment; }},
  };
  const OwnPort port;
  auto zero = std::async(std::launch::async, [&] { return failures_of({tcp_launch(0, 2, port)}); });
  for (const Wrong& wrong : wrongs) {
    detail::Hello hello = hello_of(1, 2);
    wrong.make(hello);
    const FileDescriptor rank = connect(port);
    ASSERT_TRUE(detail::send_all(rank, bytes_of(hello), in_seconds(20)));
    detail::Notice notice;
    ASSERT_TRUE(detail::receive_all(rank, detail::writable_bytes_of(notice), in_seconds(20)));
    EXPECT_THAT(notice.error().what(), HasSubstr(wrong.told));
  }
  EXPECT_EQ(failures_of({tcp_launch(1, 2, port)})[0], "");
  EXPECT_EQ(zero.get()[0], "");
}

TEST(TcpRendezvous, AProcessThatCannotBeARankEndsTheMeetingWithItsReason) {
  const OwnPort port;
  const Error error(ErrorCode::invalid_argument, "RANK=7 is no number below 3");
  auto ranks = std::async(std::launch::async, [&] {
    return failures_of({tcp_launch(0, 3, port), tcp_launch(1, 3, port)});
  });
  report_failed_launch(tcp_launch(7, 3, port), error);
  EXPECT_THAT(ranks.get(), Each(HasSubstr("cannot be a rank of it: RANK=7 is no number below 3")));
}

TEST(TcpRendezvous, RankZeroThatCannotBeARankTellsThoseThatCome) {
  const OwnPort port;
  const Error error(ErrorCode::invalid_argument, "RANK=0 contradicts itself");
  auto zero =
      std::async(std::launch::async, [&] { report_failed_launch(tcp_launch(0, 2, port), error); });
  EXPECT_THAT(failures_of({tcp_launch(1, 2, port)})[0], HasSubstr("RANK=0 contradicts itself"));
  EXPECT_EQ(zero.wait_for(detail::kSilence / 2), std::future_status::ready) << "all have been told";
  zero.get();
}

TEST(TcpRendezvous, ARankThatDiesBeforeAllHaveComeIsNamed) {
  const OwnPort port;
  auto zero = std::async(std::launch::async, [&] { return failures_of({tcp_launch(0, 3, port)}); });
  static_cast<void>(seat_of(port, 1, 3));
  EXPECT_THAT(zero.get()[0], HasSubstr("rank 1 has died: its connections have closed"));
}

TEST(TcpRendezvous, ARankThatComesLaterHearsWhyAllIsInVain) {
  const OwnPort port;
  auto zero = std::async(std::launch::async, [&] { return failures_of({tcp_launch(0, 3, port)}); });
  static_cast<void>(seat_of(port, 1, 3));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // rank 0 has noticed it
  EXPECT_THAT(failures_of({tcp_launch(2, 3, port)})[0],
              HasSubstr("rank 0 has abandoned the group: rank 1 has died"));
  EXPECT_THAT(zero.get()[0], HasSubstr("rank 1 has died"));
}

TEST(TcpRendezvous, ARankThatIsAboutToProveItselfHearsWhyAllIsInVain) {
  const OwnPort port;
  auto zero = std::async(std::launch::async, [&] { return failures_of({tcp_launch(0, 3, port)}); });
  const FileDescriptor two = connect(port);
  const detail::Hello hello = hello_of(2, 3);
  ASSERT_TRUE(detail::send_all(two, bytes_of(hello), in_seconds(20)));
  detail::Challenge challenge;
  ASSERT_TRUE(detail::receive_all(two, detail::writable_bytes_of(challenge), in_seconds(20)));
  static_cast<void>(seat_of(port, 1, 3));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // rank 0 has noticed it
  const auto proof = detail::prove(detail::key_of(""), detail::Side::caller, hello, challenge);
  ASSERT_TRUE(detail::send_all(two, bytes_of(proof), in_seconds(20)));
  detail::Notice notice;
  ASSERT_TRUE(detail::receive_all(two, detail::writable_bytes_of(notice), in_seconds(20)));
  EXPECT_THAT(notice.error().what(), HasSubstr("rank 1 has died"));
  EXPECT_THAT(zero.get()[0], HasSubstr("rank 1 has died"));
}

TEST(TcpRendezvous, ARankOfAnotherJobIsToldAndDisturbsNobody) {
  const OwnPort port;
  auto zero = std::async(std::launch::async, [&] { return failures_of({tcp_launch(0, 2, port)}); });
  EXPECT_THAT(failures_of({tcp_launch(1, 2, port, "of others")})[0],
              AllOf(HasSubstr("rank 0 has turned this one away: one of them is of job \"test\""),
                    HasSubstr("of job \"of others\""), HasSubstr("SPILLWAY_MASTER_PORT")));
  EXPECT_EQ(failures_of({tcp_launch(1, 2, port)})[0], "");
  EXPECT_EQ(zero.get()[0], "");
}

TEST(TcpRendezvous, StrangersDisturbNobody) {
  const OwnPort port;
  auto zero = std::async(std::launch::async, [&] { return failures_of({tcp_launch(0, 2, port)}); });
  std::vector<FileDescriptor> strangers;
  for (int i = 0; i < 600; ++i) strangers.push_back(connect(port));  // who say nothing
  const std::string request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + std::string(500, 'x');
  EXPECT_TRUE(detail::send_all(connect(port), std::as_bytes(std::span{request}), in_seconds(20)));
  strangers.push_back(connect(port));
  ASSERT_TRUE(detail::send_all(strangers.back(), std::as_bytes(std::span{request}).first(20),
                               in_seconds(20)));
  EXPECT_EQ(failures_of({tcp_launch(1, 2, port)})[0], "");
  EXPECT_EQ(zero.get()[0], "");
}

TEST(TcpRendezvous, SaysThatAnotherProgramHasThePort) {
  const OwnPort port;
  const FileDescriptor listener = listen(port);
  EXPECT_THAT(failures_of({tcp_launch(0, 2, port)})[0],
              AllOf(HasSubstr(std::to_string(port.number())), HasSubstr("another program has it"),
                    HasSubstr("SPILLWAY_MASTER_PORT")));
}

TEST(TcpRendezvous, SaysThatAnotherProgramAnswers) {
  const OwnPort port;
  const FileDescriptor listener = listen(port);
  auto one = std::async(std::launch::async, [&] { return failures_of({tcp_launch(1, 2, port)}); });
  const FileDescriptor socket = next_caller(listener);
  const std::string page(sizeof(detail::Notice), 'x');
  ASSERT_TRUE(detail::send_all(socket, std::as_bytes(std::span{page}), in_seconds(20)));
  EXPECT_THAT(one.get()[0], HasSubstr("is a program other than rank 0 of this job"));
}

/// Hears what a caller says first, and closes the connection.
void hang_up(const FileDescriptor& listener) {
  const FileDescriptor socket = next_caller(listener);
  detail::Hello hello;
  EXPECT_TRUE(detail::receive_all(socket, detail::writable_bytes_of(hello), in_seconds(20)));
}

TEST(TcpRendezvous, WhoIsHungUpOnWaitsForLongerBeforeEachCall) {
  const OwnPort port;
  const FileDescriptor listener = listen(port);
  auto one = std::async(std::launch::async, [&] { return failures_of({tcp_launch(1, 2, port)}); });
  hang_up(listener);  // the next call comes at once
  const auto start = std::chrono::steady_clock::now();
  for (int call = 0; call < 3; ++call) hang_up(listener);
  const FileDescriptor socket = next_caller(listener);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(20 + 40 + 60));
  ASSERT_TRUE(detail::send_all(socket, bytes_of(detail::Proof{}), in_seconds(20)));
  EXPECT_THAT(one.get()[0], HasSubstr("is a program other than rank 0 of this job"));
}

TEST(TcpRendezvous, RefusesAHostThatIsNone) {
  const OwnPort port;
  LaunchEnvironment launch = tcp_launch(1, 2, port);
  launch.host = "no host at all";
  launch.trusts_network = true;
  EXPECT_THAT(failures_of({launch})[0],
              HasSubstr("rank 1 has not reached rank 0: the host no host at all has no address"));
}

/// Takes a connection as rank 0, and returns it once the caller is admitted.
FileDescriptor admit(const FileDescriptor& listener) {
  FileDescriptor socket = next_caller(listener);
  detail::Hello hello;
  EXPECT_TRUE(detail::receive_all(socket, detail::writable_bytes_of(hello), in_seconds(20)));
  const detail::Challenge challenge{.nonce = detail::random_nonce()};
  EXPECT_TRUE(detail::send_all(socket, bytes_of(challenge), in_seconds(20)));
  detail::Proof proof;
  EXPECT_TRUE(detail::receive_all(socket, detail::writable_bytes_of(proof), in_seconds(20)));
  const detail::Key key = detail::key_of("");
  EXPECT_TRUE(detail::is_proved(key, detail::Side::caller, hello, challenge, proof));
  const detail::Proof mine = detail::prove(key, detail::Side::called, hello, challenge);
  EXPECT_TRUE(detail::send_all(socket, bytes_of(mine), in_seconds(20)));
  return socket;
}

/// Rank 0 by hand: it sends the places of `ranks` ranks to rank 2, and then that it cannot go on.
void refuse_after_welcome(const OwnPort& port, std::uint32_t ranks) {
  const FileDescriptor listener = listen(port);
  const FileDescriptor socket = admit(listener);
  const detail::Notice welcome{.kind = detail::Notice::Kind::welcome};
  std::vector<detail::Place> places(ranks);
  places[1].port = 1;  // nobody takes connections there
  ASSERT_TRUE(detail::send_all(socket, bytes_of(welcome), in_seconds(20)));
  ASSERT_TRUE(detail::send_all(socket, std::as_bytes(std::span{places}), in_seconds(20)));
  const FileDescriptor data = admit(listener);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const detail::Notice failed =
      detail::failure_notice(Rank{0}, ErrorCode::invalid_argument, "one of us is wrong");
  ASSERT_TRUE(detail::send_all(socket, bytes_of(failed), in_seconds(20)));
  std::byte end;
  while (detail::receive_all(socket, {&end, 1}, in_seconds(20))) {
  }
}

TEST(TcpRendezvous, ARankThatStillLooksForAnotherHearsThatAllIsInVain) {
  const OwnPort port;
  const auto start = std::chrono::steady_clock::now();
  auto zero = std::async(std::launch::async, [&] { refuse_after_welcome(port, 3); });
  EXPECT_THAT(failures_of({tcp_launch(2, 3, port)})[0], HasSubstr("one of us is wrong"));
  zero.get();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

/// Runs two ranks of which the second has only the connections, and returns how the first fails.
std::string failure_beside(const std::function<void(detail::Peer&)>& second) {
  const OwnPort port;
  auto zero = std::async(std::launch::async, [&] {
    return failure_of([&] {
      const auto self = make_tcp_communicator(tcp_launch(0, 2, port), kPatient);
      std::vector<std::byte> data(4);
      self->receive(data, Rank{1}).wait();
    });
  });
  std::vector<detail::Peer> peers =
      detail::meet(tcp_launch(1, 2, port), std::chrono::milliseconds(kPatient.timeout_ms));
  second(peers[0]);
  return zero.get();
}

TEST(TcpTransport, NamesARankThatHasDiedAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(failure_beside([](detail::Peer& zero) { zero = {}; }), HasSubstr("rank 1 has died"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

// A rank whose notices still come may have lost its data all the same.
TEST(TcpTransport, NamesARankWhoseDataIsLostWithoutAWord) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(failure_beside([](detail::Peer& zero) {
                zero.data = {};
                std::byte end;  // until the other one has given up
                while (detail::receive_all(zero.notices.socket(), {&end, 1}, in_seconds(20))) {
                }
              }),
              HasSubstr("the connection of rank 0 to rank 1 is lost, and rank 1 has not said that "
                        "it ends: it was closed"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(TcpTransport, NamesTheErrorOfAConnectionThatIsReset) {
  EXPECT_THAT(failure_beside([](detail::Peer& zero) {
                const linger at_once{.l_onoff = 1, .l_linger = 0};  // close sends a reset
                ::setsockopt(zero.data.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
                zero.data = {};
                std::byte end;
                while (detail::receive_all(zero.notices.socket(), {&end, 1}, in_seconds(20))) {
                }
              }),
              HasSubstr("Connection reset by peer"));
}

TEST(TcpTransport, RefusesWhatIsNoFrameOfTheTransfer) {
  for (const detail::Frame& frame :
       {detail::Frame{.magic = 7, .bytes = 40}, detail::Frame{.number = 1, .bytes = 40},
        detail::Frame{.bytes = std::uint64_t{1} << 60}}) {
    EXPECT_THAT(failure_beside([&](detail::Peer& zero) {
                  EXPECT_TRUE(detail::send_all(zero.data, bytes_of(frame), in_seconds(20)));
                  std::byte end;  // until the other one has given up
                  while (detail::receive_all(zero.notices.socket(), {&end, 1}, in_seconds(20))) {
                  }
                }),
                AllOf(HasSubstr("rank 1 has sent transfer"), HasSubstr("is damaged")));
  }
}

TEST(TcpTransport, RefusesWhatIsNoNotice) {
  EXPECT_THAT(failure_beside([](detail::Peer& zero) {
                const std::string text(sizeof(detail::Notice), 'x');
                EXPECT_TRUE(detail::send_all(zero.notices.socket(), std::as_bytes(std::span{text}),
                                             in_seconds(20)));
                std::byte end;
                while (detail::receive_all(zero.notices.socket(), {&end, 1}, in_seconds(20))) {
                }
              }),
              HasSubstr("rank 1 has sent something else than a notice"));
}

TEST(TcpTransport, NamesARankThatLeavesWhileAnotherWaitsForIt) {
  EXPECT_THAT(failure_of([] {
                run_tcp_ranks(2, kPatient, [](Communicator& self) {
                  std::vector<std::byte> data(4);
                  if (self.rank() == Rank{0}) self.receive(data, Rank{1}).wait();
                });
              }),
              HasSubstr("rank 1 has left the group while rank 0 waits for it"));
}

TEST(TcpTransport, NamesARankThatLeavesWhileAnotherWaitsForItOrAThird) {
  EXPECT_THAT(failure_of([] {
                run_tcp_ranks(3, kPatient, [](Communicator& self) {
                  std::vector<std::byte> data(4);
                  const std::vector<Rank> others{Rank{1}, Rank{2}};
                  Rank sender{0};
                  if (self.rank() == Rank{0}) self.receive(data, others, sender).wait();
                  if (self.rank() == Rank{2}) self.receive(data, Rank{0}).wait();
                });
              }),
              HasSubstr("rank 1 has left the group while rank 0 waits for it"));
}

TEST(TcpTransport, RanksThatAreDoneMayLeaveBeforeTheOthers) {
  run_tcp_ranks(3, kPatient, [](Communicator& self) {
    std::vector<std::byte> data(100'000);
    if (self.rank() == Rank{0}) self.send(data, Rank{1}).wait();
    if (self.rank() == Rank{0}) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (self.rank() == Rank{1}) self.receive(data, Rank{0}).wait();
    if (self.rank() == Rank{1}) self.send(data, Rank{2}).wait();
    if (self.rank() == Rank{2}) self.receive(data, Rank{1}).wait();
  });
}

}  // namespace
}  // namespace spillway::comm::tcp_test
