// The contract of IoEngine. Every engine and adaptor is instantiated under this one suite.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "nvme_swap/io_engine.hpp"
#include "tests/nvme_swap/test_support.hpp"

namespace spillway::nvme_swap {

struct EngineCase {
  std::string name;
  std::function<std::unique_ptr<IoEngine>(const EngineOptions&)> make;
};

/// Two files of 16 pages with O_DIRECT where there is one, and a third that is read-only.
class IoEngineContract : public ::testing::TestWithParam<EngineCase> {
 protected:
  static constexpr std::size_t kFilePages = 16;
  static constexpr std::size_t kDepth = 8;

  IoEngineContract() {
    for (const char* name : {"a", "b"}) files_.push_back(open_file(name, O_RDWR | O_CREAT));
    files_.push_back(open_file("a", O_RDONLY));
    engine_ = make(&wake_);
  }
  ~IoEngineContract() override {
    engine_.reset();
    for (const int file : files_) ::close(file);
  }

  [[nodiscard]] std::unique_ptr<IoEngine> make(WakeSignal* wake) {
    return GetParam().make({.files = files_, .queue_depth = kDepth, .wake = wake});
  }

  int open_file(const char* name, int flags) {
    const auto path = scratch_.path() / name;
    const int file = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
    EXPECT_GE(file, 0);
    if ((flags & O_CREAT) != 0) {
      EXPECT_EQ(::posix_fallocate(file, 0, kFilePages * kPageBytes), 0);
    }
    // Without O_DIRECT the contract is the same.
    static_cast<void>(::fcntl(file, F_SETFL, O_DIRECT));
    return file;
  }

  /// Submits one request and waits for its result.
  std::int64_t run(IoRequest request) {
    request.tag = ++next_tag_;
    EXPECT_EQ(engine_->submit({&request, 1}), 1U);
    const auto results = collect(1);
    EXPECT_EQ(results.size(), 1U);
    EXPECT_EQ(results.begin()->first, request.tag);
    return results.begin()->second;
  }

  std::map<std::uint64_t, std::int64_t> collect(std::size_t count) {
    std::map<std::uint64_t, std::int64_t> results;
    std::vector<IoResult> batch(3);
    while (results.size() < count) {
      engine_->wait();
      const std::size_t got = engine_->poll(batch);
      for (std::size_t i = 0; i < got; ++i) {
        EXPECT_TRUE(results.emplace(batch[i].tag, batch[i].result).second) << "reported twice";
      }
    }
    return results;
  }

  IoRequest request(IoOperation operation, std::size_t file, std::size_t page,
                    std::span<std::byte> data) {
    return {.operation = operation,
            .file = files_.at(file),
            .offset = FileOffset{page * kPageBytes},
            .data = data.data(),
            .length = data.size(),
            .tag = ++next_tag_};
  }

  ScratchDirectory scratch_;
  std::vector<int> files_;
  WakeSignal wake_;
  std::unique_ptr<IoEngine> engine_;
  std::uint64_t next_tag_ = 100;
};

TEST_P(IoEngineContract, ReadsBackWhatItWrote) {
  for (std::size_t file = 0; file < 2; ++file) {
    PageBuffer source = tile_content(8_KiB, file, 1);
    EXPECT_EQ(run(request(IoOperation::write, file, 3, source.bytes())), 8192);
  }
  for (std::size_t file = 0; file < 2; ++file) {
    PageBuffer target(8192);
    EXPECT_EQ(run(request(IoOperation::read, file, 3, target.bytes())), 8192);
    EXPECT_TRUE(same_bytes(target.bytes(), tile_content(8_KiB, file, 1).bytes()));
  }
}

TEST_P(IoEngineContract, FlushesWithResultZero) {
  EXPECT_EQ(run({.operation = IoOperation::flush, .file = files_[0]}), 0);
}

TEST_P(IoEngineContract, ReportsAShortReadAtTheEndOfTheFile) {
  PageBuffer target(4 * kPageBytes);
  EXPECT_EQ(run(request(IoOperation::read, 0, kFilePages - 1, target.bytes())), 4096);
  EXPECT_EQ(run(request(IoOperation::read, 0, kFilePages, target.bytes())), 0);
}

TEST_P(IoEngineContract, ReportsTheErrorNumberOfAFailedRequest) {
  PageBuffer data(kPageBytes);
  EXPECT_EQ(run(request(IoOperation::write, 2, 0, data.bytes())), -EBADF);
  EXPECT_EQ(run(request(IoOperation::read, 2, 0, data.bytes())), 4096) << "it still works";
}

TEST_P(IoEngineContract, TakesNoMoreThanItsQueueHolds) {
  PageBuffer data((kDepth + 3) * kPageBytes);
  std::vector<IoRequest> requests;
  for (std::size_t i = 0; i < kDepth + 3; ++i) {
    requests.push_back(
        request(IoOperation::read, 0, i, data.bytes().subspan(i * kPageBytes, kPageBytes)));
  }
  EXPECT_EQ(engine_->submit(requests), kDepth);
  EXPECT_EQ(engine_->submit(std::span(requests).subspan(kDepth)), 0U);
  const auto first = collect(kDepth);
  EXPECT_EQ(engine_->submit(std::span(requests).subspan(kDepth)), 3U);
  auto all = collect(3);
  all.insert(first.begin(), first.end());
  ASSERT_EQ(all.size(), requests.size());
  for (const IoRequest& sent : requests) EXPECT_EQ(all.at(sent.tag), 4096);
}

TEST_P(IoEngineContract, ReturnsAtOnceWhenNothingIsInFlight) {
  std::vector<IoResult> results(2);
  engine_->wait();
  EXPECT_EQ(engine_->poll(results), 0U);
  EXPECT_EQ(engine_->submit({}), 0U);
  EXPECT_EQ(engine_->poll({}), 0U);
}

TEST_P(IoEngineContract, WakesTheControlThread) {
  PageBuffer data(kPageBytes);
  const IoRequest sent = request(IoOperation::read, 1, 0, data.bytes());
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(engine_->submit({&sent, 1}), 1U);
  IoResult result;
  std::size_t got = 0;
  while (got == 0) {
    // A missing notification would cost the full 10 s.
    wake_.wait_for(std::chrono::seconds{10});
    got = engine_->poll({&result, 1});
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds{5});
  EXPECT_EQ(result.tag, sent.tag);
  EXPECT_EQ(result.result, 4096);
}

TEST_P(IoEngineContract, NeedsNoWakeSignal) {
  engine_ = make(nullptr);
  PageBuffer data(kPageBytes);
  EXPECT_EQ(run(request(IoOperation::read, 1, 0, data.bytes())), 4096);
}

TEST_P(IoEngineContract, WaitsForRequestsInFlightWhenDestroyed) {
  PageBuffer source = tile_content(Bytes{kDepth * kPageBytes}, 5, 5);
  EXPECT_EQ(run(request(IoOperation::write, 0, 0, source.bytes())), 8 * 4096);
  PageBuffer target(kDepth * kPageBytes);
  std::vector<IoRequest> requests;
  for (std::size_t i = 0; i < kDepth; ++i) {
    requests.push_back(
        request(IoOperation::read, 0, i, target.bytes().subspan(i * kPageBytes, kPageBytes)));
  }
  EXPECT_EQ(engine_->submit(requests), kDepth);
  engine_.reset();
  EXPECT_TRUE(same_bytes(target.bytes(), source.bytes()));
}

TEST_P(IoEngineContract, RefusesAFileItWasNotGiven) {
  PageBuffer data(kPageBytes);
  IoRequest sent = request(IoOperation::read, 0, 0, data.bytes());
  sent.file = wake_.descriptor();
  EXPECT_EQ(code_of([&] {
              static_cast<void>(engine_->submit({&sent, 1}));
            }),
            ErrorCode::invalid_argument);
  EXPECT_EQ(run(request(IoOperation::read, 0, 0, data.bytes())), 4096) << "it still works";
}

TEST_P(IoEngineContract, ReportsEveryRequestOnceUnderLoad) {
  std::mt19937_64 random(test_seed());
  PageBuffer data(kDepth * kPageBytes);
  std::set<std::uint64_t> in_flight;
  std::vector<std::size_t> free_pages;
  std::map<std::uint64_t, std::size_t> page_of;
  for (std::size_t page = 0; page < kDepth; ++page) free_pages.push_back(page);
  std::vector<IoResult> results(5);
  for (std::size_t done = 0; done < 600;) {
    std::vector<IoRequest> batch;
    while (!free_pages.empty() && random() % 4 != 0) {
      const std::size_t page = free_pages.back();
      free_pages.pop_back();
      const auto kind = random() % 2 == 0 ? IoOperation::read : IoOperation::write;
      batch.push_back(request(kind, random() % 2, random() % kFilePages,
                              data.bytes().subspan(page * kPageBytes, kPageBytes)));
      in_flight.insert(batch.back().tag);
      page_of[batch.back().tag] = page;
    }
    ASSERT_EQ(engine_->submit(batch), batch.size());
    const std::size_t got = engine_->poll(results);
    for (std::size_t i = 0; i < got; ++i) {
      ASSERT_EQ(in_flight.erase(results[i].tag), 1U);
      ASSERT_EQ(results[i].result, 4096);
      free_pages.push_back(page_of.at(results[i].tag));
    }
    if (got == 0) engine_->wait();
    done += got;
  }
  engine_.reset();  // before the buffer that requests in flight use
}

}  // namespace spillway::nvme_swap
