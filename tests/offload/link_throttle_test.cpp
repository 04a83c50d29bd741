// The link model in virtual time, exactly, and the real clock within loose bounds.
#include "offload/host/detail/link_throttle.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "offload/host/host_backend.hpp"
#include "offload/memory.hpp"

namespace spillway::offload::link_throttle_test {
namespace {

using host::LinkThrottle;
using std::chrono::nanoseconds;
using Time = LinkThrottle::Clock::time_point;

constexpr Time at(long long ns) { return Time(nanoseconds(ns)); }

TEST(LinkThrottle, TakesBytesOverRate) {
  LinkThrottle link(2.0);  // 2 bytes a nanosecond
  EXPECT_EQ(link.reserve(at(1000), 500), at(1250));
}

TEST(LinkThrottle, SerialisesTransfersThatAreReadyTogether) {
  LinkThrottle link(1.0);
  EXPECT_EQ(link.reserve(at(100), 50), at(150));
  EXPECT_EQ(link.reserve(at(100), 50), at(200));
  EXPECT_EQ(link.reserve(at(120), 50), at(250));
}

TEST(LinkThrottle, StandsIdleUntilSomethingIsReady) {
  LinkThrottle link(1.0);
  EXPECT_EQ(link.reserve(at(100), 50), at(150));
  EXPECT_EQ(link.reserve(at(1000), 50), at(1050));  // no credit for the time between
}

TEST(LinkThrottle, LosesNoTimeToRoundingHoweverSmallTheCopies) {
  LinkThrottle link(3.0);
  Time last{};
  for (int i = 0; i < 3'000'000; ++i) last = link.reserve(at(0), 1);
  EXPECT_NEAR(static_cast<double>(last.time_since_epoch().count()), 1e6, 1.0);
}

/// Seconds that `work` takes.
template <class Work>
double seconds_of(Work&& work) {
  const auto start = LinkThrottle::Clock::now();
  work();
  return std::chrono::duration<double>(LinkThrottle::Clock::now() - start).count();
}

/// A link never delivers early. That it delivers in time shows in the best of a few trials, on a
/// machine that is busy with other tests; the bound would still notice copies charged twice.
template <class Work>
void expect_transfer_time(double ideal, Work&& work) {
  double best = seconds_of(work);
  for (int trial = 0; trial < 9 && best > ideal * 1.3; ++trial) {
    const double seconds = seconds_of(work);
    EXPECT_GE(seconds, ideal * 0.999);
    best = std::min(best, seconds);
  }
  EXPECT_GE(best, ideal * 0.999);
  EXPECT_LE(best, ideal * 1.3);
}

TEST(HostBackendLink, KeepsTheConfiguredRateInEachDirectionAndOverlapsBoth) {
  constexpr double kRate = 0.2;
  const auto backend = make_host_backend(
      {.device_capacity = 64_MiB, .pinned_capacity = 64_MiB, .link_gigabytes_per_second = kRate});
  const auto up = backend->make_stream("up");
  const auto up_too = backend->make_stream("up too");
  const auto down = backend->make_stream("down");
  const DeviceMemory device(*backend, 4_MiB);
  const PinnedMemory host(*backend, 4_MiB);
  constexpr std::size_t kPiece = 64 << 10;
  const auto piece = [&](std::size_t i) {
    return std::pair(device.device().subspan(i * kPiece, kPiece),
                     host.host().subspan(i * kPiece, kPiece));
  };
  // 64 KiB pieces: a sleep that always ended 60 us late would cost a fifth of the rate. Streams
  // touch different halves.
  const auto upload = [&](Stream& stream, std::size_t first, std::size_t pieces) {
    for (std::size_t i = 0; i < pieces; ++i) {
      const auto [target, source] = piece(first + i % 16);
      stream.upload(target, source);
    }
  };
  constexpr std::size_t kPieces = 320;  // 21 MB
  constexpr double kIdeal = kPieces * kPiece / (kRate * 1e9);

  {
    SCOPED_TRACE("one stream");
    expect_transfer_time(kIdeal, [&] {
      upload(*up, 0, kPieces);
      up->synchronize();
    });
  }
  {
    SCOPED_TRACE("two streams share one direction");
    expect_transfer_time(kIdeal, [&] {
      upload(*up, 0, kPieces / 2);
      upload(*up_too, 16, kPieces / 2);
      up->synchronize();
      up_too->synchronize();
    });
  }
  {
    SCOPED_TRACE("both directions at once");
    expect_transfer_time(kIdeal, [&] {
      upload(*up, 0, kPieces);
      for (std::size_t i = 0; i < kPieces; ++i) {
        const auto [source, target] = piece(32 + i % 16);
        down->download(target, source);
      }
      up->synchronize();
      down->synchronize();
    });
  }
}

// A piece takes 5 us, about what waking from a sleep takes: a worker that did not catch up on what
// it overslept would need twice the time.
TEST(HostBackendLink, KeepsTheConfiguredRateForPiecesShorterThanASleep) {
  const auto backend = make_host_backend({.device_capacity = 1_MiB,
                                          .pinned_capacity = 1_MiB,
                                          .link_gigabytes_per_second = 0.05,
                                          .stream_depth = 4096});
  const auto stream = backend->make_stream("up");
  const DeviceMemory device(*backend, 1000_B);
  const PinnedMemory host(*backend, 1000_B);
  constexpr int kPieces = 4'000;
  expect_transfer_time(kPieces * 1000 / 0.05e9, [&] {
    for (int i = 0; i < kPieces; ++i) stream->upload(device.device(), host.host());
    stream->synchronize();
  });
}

TEST(HostBackendLink, AnIdleLinkSavesNothingUpForLater) {
  const auto backend = make_host_backend(
      {.device_capacity = 4_MiB, .pinned_capacity = 4_MiB, .link_gigabytes_per_second = 0.1});
  const auto stream = backend->make_stream("up");
  const DeviceMemory device(*backend, 4_MiB);
  const PinnedMemory host(*backend, 4_MiB);
  for (int round = 0; round < 3; ++round) {
    const double seconds = seconds_of([&] {
      stream->upload(device.device(), host.host());
      stream->synchronize();
    });
    EXPECT_GE(seconds, 0.0419);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
}

}  // namespace
}  // namespace spillway::offload::link_throttle_test
