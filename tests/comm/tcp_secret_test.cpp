// Who may be a rank of a job that meets over TCP: those who prove that they know its secret,
// whatever else comes to its port.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/tcp/job_key.hpp"
#include "comm/tcp/listening.hpp"
#include "comm/tcp/proof.hpp"
#include "comm/tcp/reception.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"
#include "tests/comm/tcp_ranks.hpp"
#include "tests/support/temporary_directory.hpp"

namespace spillway::comm::tcp_secret_test {
namespace {

namespace fs = std::filesystem;
using detail::bytes_of;
using detail::writable_bytes_of;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr const char* kSecret = "0123456789abcdef";

LaunchEnvironment launch_with(std::uint32_t rank, const OwnPort& port, const std::string& secret,
                              std::uint32_t ranks = 2) {
  LaunchEnvironment launch = tcp_launch(rank, ranks, port);
  launch.secret = secret;
  return launch;
}

LaunchEnvironment launch_in(const fs::path& directory, std::uint32_t rank, const OwnPort& port,
                            std::uint32_t ranks = 2) {
  LaunchEnvironment launch = tcp_launch(rank, ranks, port);
  launch.meeting_directory = directory;
  return launch;
}

std::future<std::string> start(const LaunchEnvironment& launch) {
  return std::async(std::launch::async, [launch] { return failures_of({launch})[0]; });
}

TEST(TcpSecret, RanksWithTheSameOneMeet) {
  const OwnPort port;
  EXPECT_THAT(failures_of({launch_with(0, port, kSecret, 3), launch_with(1, port, kSecret, 3),
                           launch_with(2, port, kSecret, 3)}),
              Each(""));
}

TEST(TcpSecret, ARankWithAnotherOneIsTurnedAwayAndTheJobGoesOn) {
  const OwnPort port;
  auto zero = start(launch_with(0, port, kSecret));
  EXPECT_THAT(failures_of({launch_with(1, port, "0123456789abcdeF")})[0],
              AllOf(HasSubstr("rank 0 has turned this one away"),
                    HasSubstr("rank 1 does not know the secret of this job, which rank 0 has from "
                              "SPILLWAY_JOB_SECRET")));
  EXPECT_EQ(failures_of({launch_with(1, port, kSecret)})[0], "");
  EXPECT_EQ(zero.get(), "");
}

TEST(TcpSecret, ARankWithoutOneHearsWhereTheOthersHaveIt) {
  const OwnPort port;
  auto zero = start(launch_with(0, port, kSecret));
  EXPECT_THAT(failures_of({tcp_launch(1, 2, port)})[0],
              HasSubstr("rank 1 has the secret of the job from nowhere, and rank 0 from "
                        "SPILLWAY_JOB_SECRET"));
  EXPECT_EQ(failures_of({launch_with(1, port, kSecret)})[0], "");
  EXPECT_EQ(zero.get(), "");
}

TEST(TcpSecret, OneThatCouldBeGuessedIsRefused) {
  const OwnPort port;
  EXPECT_THAT(failures_of({launch_with(0, port, "0123456789abcde")})[0],
              HasSubstr("SPILLWAY_JOB_SECRET has 15 characters, and needs 16"));
}

TEST(TcpSecret, RanksOfSeveralMachinesNeedOneUnlessTheirNetworkIsTrusted) {
  const OwnPort port;
  LaunchEnvironment launch = tcp_launch(1, 2, port);
  launch.local_ranks = 1;
  EXPECT_THAT(failures_of({launch})[0], AllOf(HasSubstr("the ranks are on several machines"),
                                              HasSubstr("SPILLWAY_JOB_SECRET")));
  LaunchEnvironment first = tcp_launch(0, 2, port);
  for (LaunchEnvironment* const one : {&launch, &first}) {
    one->local_ranks = 1;
    one->trusts_network = true;
  }
  EXPECT_THAT(failures_of({first, launch}), Each(""));
}

TEST(TcpListening, RankZeroListensBeyondItsLoopbackForRanksOfOtherMachinesAlone) {
  const OwnPort port;
  LaunchEnvironment launch = tcp_launch(0, 2, port);
  EXPECT_EQ(detail::this_end(detail::listen_as_first(launch)), "") << "that of loopback";
  launch.local_ranks = 1;
  EXPECT_NE(detail::this_end(detail::listen_as_first(launch)), "");
}

TEST(TcpSecret, RankZeroMakesOneInADirectoryOfTheJobAndTakesItAwayAgain) {
  const OwnPort port;
  const test_support::TemporaryDirectory scratch;
  const fs::path job = scratch.path() / "jobs/one";
  auto zero = start(launch_in(job, 0, port, 3));
  auto one = start(launch_in(job, 1, port, 3));
  struct stat about {};
  while (::stat((job / "job.secret").c_str(), &about) != 0) std::this_thread::yield();
  EXPECT_EQ(about.st_mode & 0777, 0600U);
  EXPECT_EQ(failures_of({launch_in(job, 2, port, 3)})[0], "");
  EXPECT_EQ(zero.get(), "");
  EXPECT_EQ(one.get(), "");
  EXPECT_FALSE(fs::exists(scratch.path() / "jobs")) << "what was made for it goes too";
}

TEST(TcpSecret, ASecondStartInTheDirectoryOfTheFirstIsRefusedAndDisturbsNobody) {
  const OwnPort port;
  const OwnPort another;
  const test_support::TemporaryDirectory scratch;
  auto zero = start(launch_in(scratch.path(), 0, port));
  while (!fs::exists(scratch.path() / "job.secret")) std::this_thread::yield();
  EXPECT_THAT(failures_of({launch_in(scratch.path(), 0, another)})[0],
              HasSubstr("job.secret is of another start, whose ranks are meeting"));
  EXPECT_EQ(failures_of({launch_in(scratch.path(), 1, port)})[0], "");
  EXPECT_EQ(zero.get(), "");
  EXPECT_FALSE(fs::exists(scratch.path() / "job.secret"));
}

/// Makes the file of rank 0 in `directory` many times, and each time reads it as another rank.
/// Returns how it fails otherwise than by being in use.
std::set<std::string> failures_of_starts(const fs::path& directory) {
  std::set<std::string> failures;
  const OwnPort port;
  for (int i = 0; i < 3000; ++i) {
    try {
      detail::JobKey zero(launch_in(directory, 0, port));
      detail::JobKey one(launch_in(directory, 1, port));
      if (one.get() != zero.get()) failures.insert("the file is another's");
    } catch (const Error& error) {
      if (error.code() != ErrorCode::busy) failures.insert(error.what());
    }
  }
  return failures;
}

TEST(TcpSecret, OfStartsAtOnceInADirectoryAllButOneHearThatItIsInUse) {
  const test_support::TemporaryDirectory scratch;
  const fs::path directory = scratch.path() / "run";
  const auto start = [&] { return failures_of_starts(directory); };
  auto other = std::async(std::launch::async, start);
  EXPECT_THAT(start(), testing::IsEmpty());
  EXPECT_THAT(other.get(), testing::IsEmpty());
}

TEST(TcpSecret, OneThatAKilledStartLeftIsNotUsedAgain) {
  const OwnPort port;
  const test_support::TemporaryDirectory scratch;
  const fs::path file = scratch.path() / "job.secret";
  std::ofstream(file) << std::string(64, '0');
  ASSERT_EQ(::chmod(file.c_str(), 0600), 0);
  auto zero = start(launch_in(scratch.path(), 0, port));
  EXPECT_THAT(failures_of({launch_with(1, port, std::string(64, '0'))})[0],
              HasSubstr("rank 0 from a file of the run directory"));
  EXPECT_EQ(failures_of({launch_in(scratch.path(), 1, port)})[0], "");
  EXPECT_EQ(zero.get(), "");
}

TEST(TcpSecret, ARankThatSeesAnotherDirectoryHearsWhatToDo) {
  const OwnPort port;
  const test_support::TemporaryDirectory scratch;
  testing::internal::CaptureStderr();
  auto zero = start(launch_in(scratch.path() / "zero", 0, port));
  EXPECT_THAT(failures_of({launch_in(scratch.path() / "one", 1, port)})[0],
              AllOf(HasSubstr("rank 1 finds no"), HasSubstr("one/job.secret"),
                    HasSubstr("SPILLWAY_JOB_SECRET"), HasSubstr("--trust-network")));
  EXPECT_EQ(failures_of({launch_in(scratch.path() / "zero", 1, port)})[0], "");
  EXPECT_EQ(zero.get(), "");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("rank 1 still looks for "));
}

TEST(TcpSecret, AFileThatOthersCanReadIsNotBelieved) {
  const OwnPort port;
  const test_support::TemporaryDirectory scratch;
  std::ofstream(scratch.path() / "job.secret") << std::string(64, '0');
  auto zero = start(launch_in(scratch.path() / "zero", 0, port));
  EXPECT_THAT(failures_of({launch_in(scratch.path(), 1, port)})[0],
              HasSubstr("is not a file that this user alone can read"));
  EXPECT_EQ(failures_of({launch_in(scratch.path() / "zero", 1, port)})[0], "");
  EXPECT_EQ(zero.get(), "");
}

// Who has the port of rank 0 and does not know the secret cannot use what the rank itself has sent.
TEST(TcpSecret, ARankDoesNotTakeItsOwnProofForThatOfRankZero) {
  const OwnPort port;
  const FileDescriptor listener = listen(port);
  auto one = start(launch_with(1, port, kSecret));
  const FileDescriptor socket = next_caller(listener);
  detail::Hello hello;
  ASSERT_TRUE(detail::receive_all(socket, writable_bytes_of(hello), in_seconds(20)));
  ASSERT_TRUE(
      detail::send_all(socket, bytes_of(detail::Challenge{.nonce = hello.nonce}), in_seconds(20)));
  detail::Proof proof;
  ASSERT_TRUE(detail::receive_all(socket, writable_bytes_of(proof), in_seconds(20)));
  ASSERT_TRUE(detail::send_all(socket, bytes_of(proof), in_seconds(20)));
  EXPECT_THAT(one.get(), HasSubstr("is a program other than rank 0 of this job"));
}

TEST(TcpSecret, WhoRepeatsWhatARankHasSaidIsNone) {
  const OwnPort port;
  const detail::Key key = detail::key_of(kSecret);
  const detail::Hello hello = [] {
    detail::Hello said = hello_of(1, 2);
    said.key = detail::KeySource::environment;
    return said;
  }();
  auto zero = start(launch_with(0, port, kSecret));
  detail::Proof proof;
  for (const bool again : {false, true}) {
    const FileDescriptor socket = connect(port);
    ASSERT_TRUE(detail::send_all(socket, bytes_of(hello), in_seconds(20)));
    detail::Challenge challenge;
    ASSERT_TRUE(detail::receive_all(socket, writable_bytes_of(challenge), in_seconds(20)));
    if (!again) {  // heard on the way, and not sent
      proof = detail::prove(key, detail::Side::caller, hello, challenge);
      continue;
    }
    ASSERT_TRUE(detail::send_all(socket, bytes_of(proof), in_seconds(20)));
    detail::Notice notice;
    ASSERT_TRUE(detail::receive_all(socket, writable_bytes_of(notice), in_seconds(20)));
    EXPECT_THAT(notice.error().what(), HasSubstr("does not know the secret"));
  }
  EXPECT_EQ(failures_of({launch_with(1, port, kSecret)})[0], "");
  EXPECT_EQ(zero.get(), "");
}

TEST(TcpSecret, ARankThatHasFailedSaysSoAndRefusesNobodyAnyMore) {
  const OwnPort port;
  detail::JobKey key(launch_with(0, port, kSecret));
  detail::Hello own = hello_of(0, 2);
  detail::Hello hello = hello_of(1, 2);
  own.key = hello.key = detail::KeySource::environment;
  detail::Reception reception(own, listen(port), key);
  const FileDescriptor caller = connect(port);
  ASSERT_TRUE(detail::send_all(caller, bytes_of(hello), in_seconds(20)));
  const int watched[] = {caller.get()};
  EXPECT_FALSE(reception.admit(watched, in_seconds(20)).has_value()) << "it is asked for a proof";
  detail::Challenge challenge;
  ASSERT_TRUE(detail::receive_all(caller, writable_bytes_of(challenge), in_seconds(20)));
  ASSERT_TRUE(detail::send_all(caller, bytes_of(detail::Proof{}), in_seconds(20)));
  const detail::Notice failure = detail::failure_notice(Rank{0}, ErrorCode::io_error, "no paper");
  for (int i = 0; i < 1000 && reception.turned_away() == 0; ++i) {
    reception.turn_away(failure, std::chrono::steady_clock::now() + std::chrono::milliseconds(10));
  }
  EXPECT_EQ(reception.last_refusal(), "");
  detail::Notice heard;
  ASSERT_TRUE(detail::receive_all(caller, writable_bytes_of(heard), in_seconds(20)));
  EXPECT_THAT(heard.error().what(), HasSubstr("rank 0 has abandoned the group: no paper"));
}

/// Sends what a rank would say, with some of it changed, or cut off, or another one's.
void disturb(const OwnPort& port, unsigned seed, std::atomic<int>& sent,
             const std::atomic<bool>& done) {
  std::mt19937 chance(seed);
  const auto below = [&](std::uint64_t end) { return static_cast<std::uint32_t>(chance() % end); };
  while (!done) {
    FileDescriptor socket;
    try {
      socket = detail::connect_to("127.0.0.1", port.number(), in_seconds(0));
    } catch (const std::exception&) {
      continue;  // nobody meets there any more
    }
    ++sent;
    const linger at_once{.l_onoff = 1, .l_linger = 0};  // many connections leave nothing behind
    ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    detail::Hello hello = hello_of(below(4), 3);
    hello.key = detail::KeySource::environment;
    const auto bytes = writable_bytes_of(hello);
    for (std::uint32_t wrong = below(3); wrong > 0; --wrong) {
      bytes[below(sizeof hello)] = static_cast<std::byte>(chance());
    }
    detail::send_small(socket, bytes.first(below(4) == 0 ? below(sizeof hello) : sizeof hello));
    detail::Challenge challenge;
    if (below(2) == 0 ||
        !detail::receive_all(socket, writable_bytes_of(challenge),
                             std::chrono::steady_clock::now() + std::chrono::milliseconds(1))) {
      continue;
    }
    const detail::Key key = detail::key_of(below(2) == 0 ? "" : "a guess");
    detail::send_small(socket,
                       bytes_of(detail::prove(key, detail::Side::caller, hello, challenge)));
  }
}

TEST(TcpSecret, StrangersChangeNothing) {
  const OwnPort port;
  std::atomic<int> sent = 0;
  std::atomic<bool> done = false;
  std::vector<std::future<std::string>> ranks;
  ranks.push_back(start(launch_with(0, port, kSecret, 3)));
  std::vector<std::jthread> strangers;
  for (unsigned seed = 0; seed < 4; ++seed) {
    strangers.emplace_back([&, seed] { disturb(port, seed, sent, done); });
  }
  while (sent < 20'000) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ranks.push_back(start(launch_with(2, port, kSecret, 3)));
  ranks.push_back(start(launch_with(1, port, kSecret, 3)));
  for (std::future<std::string>& rank : ranks) EXPECT_EQ(rank.get(), "");
  done = true;
}

}  // namespace
}  // namespace spillway::comm::tcp_secret_test
