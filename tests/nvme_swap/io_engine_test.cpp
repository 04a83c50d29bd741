// Every engine, bare and under each adaptor, under the contract suite.
#include <gmock/gmock.h>

#include <array>

#include "nvme_swap/detail/throttled_engine.hpp"
#include "nvme_swap/failing_engine.hpp"
#include "tests/nvme_swap/io_engine_contract.hpp"

namespace spillway::nvme_swap::io_engine_test {
namespace {

using Maker = std::function<std::unique_ptr<IoEngine>(const EngineOptions&)>;

Maker plain(EngineKind kind) {
  return [kind](const EngineOptions& options) { return make_engine(kind, options); };
}

Maker failing(Maker inner) {
  return [inner](const EngineOptions& options) {
    return std::make_unique<FailingEngine>(inner(options), options);
  };
}

/// Every result comes 2 ms late.
Maker delayed(Maker inner) {
  return [inner](const EngineOptions& options) {
    auto engine = std::make_unique<FailingEngine>(inner(options), options);
    engine->arm(
        {.action = FaultAction::delay, .count = 1'000'000, .delay = std::chrono::milliseconds{2}});
    return engine;
  };
}

Maker throttled(Maker inner) {
  return [inner](const EngineOptions& options) {
    return detail::make_throttled_engine(inner(options), options, 0.05);
  };
}

std::string name_of_case(const ::testing::TestParamInfo<EngineCase>& entry) {
  return entry.param.name;
}

const Maker kPosix = plain(EngineKind::posix);
const Maker kUring = plain(EngineKind::uring);
const Maker kAio = plain(EngineKind::aio);

Maker with_submission_thread() {
  return [](EngineOptions options) {
    options.uring.submission_thread = true;
    return make_engine(EngineKind::uring, options);
  };
}

INSTANTIATE_TEST_SUITE_P(Engines, IoEngineContract,
                         ::testing::Values(EngineCase{"posix", kPosix}, EngineCase{"uring", kUring},
                                           EngineCase{"aio", kAio},
                                           EngineCase{"uringThread", with_submission_thread()},
                                           EngineCase{"aioFailing", failing(kAio)},
                                           EngineCase{"aioThrottled", throttled(kAio)},
                                           EngineCase{"posixFailing", failing(kPosix)},
                                           EngineCase{"uringFailing", failing(kUring)},
                                           EngineCase{"posixDelayed", delayed(kPosix)},
                                           EngineCase{"uringDelayed", delayed(kUring)},
                                           EngineCase{"posixThrottled", throttled(kPosix)},
                                           EngineCase{"uringThrottled", throttled(kUring)}),
                         name_of_case);

TEST(MakeEngine, PicksAnEngineThatRunsHere) {
  const auto engine = make_engine(EngineKind::automatic, {.files = {}});
  EXPECT_THAT(std::string(engine->name()), ::testing::AnyOf("uring", "aio", "posix"));
}

TEST(MakeEngine, TakesPosixForFilesInThePageCache) {
  ScratchDirectory scratch;
  const int opened = ::open((scratch.path() / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const int file = ::fcntl(opened, F_DUPFD_CLOEXEC, 100);  // no command of fcntl is that number
  ASSERT_GE(file, 100);
  ::close(opened);
  const int files[] = {file};
  EXPECT_EQ(make_engine(EngineKind::automatic, {.files = files})->name(), "posix");
  ::close(file);
}

TEST(MakeEngine, NamesTheReasonWhenUringCannotRun) {
  // A descriptor that is not open cannot be registered.
  const int files[] = {-7};
  const EngineOptions options{.files = files};
  EXPECT_EQ(code_of([&] { static_cast<void>(make_engine(EngineKind::uring, options)); }),
            ErrorCode::not_supported);
  EXPECT_THAT(message_of([&] { static_cast<void>(make_engine(EngineKind::uring, options)); }),
              ::testing::AllOf(::testing::HasSubstr("io_uring is not usable here"),
                               ::testing::HasSubstr("registering the files")));
  EXPECT_EQ(make_engine(EngineKind::automatic, options)->name(), "aio");
}

TEST(MakeEngine, DoesWithoutWhatTheMachineLacks) {
  ScratchDirectory scratch(Medium::memory);
  const int file = ::open((scratch.path() / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const int files[] = {file};
  const EngineOptions options{.files = files,
                              .uring = {.submission_thread = true, .completion_polling = true}};
  const auto engine = make_engine(EngineKind::uring, options);
  EXPECT_FALSE(engine->abilities().completion_polling) << "a file in memory has no device";
  EXPECT_FALSE(make_engine(EngineKind::posix, options)->abilities().submission_thread);
  ::close(file);
}

TEST(MakeEngine, SaysWhyUringDoesNotPollOnlyWhereThatIsAskedFor) {
  const auto log_of = [](const UringOptions& uring) {
    set_log_level(LogLevel::info);
    ::testing::internal::CaptureStderr();
    static_cast<void>(make_engine(EngineKind::uring, {.files = {}, .uring = uring}));
    set_log_level(LogLevel::warning);
    return ::testing::internal::GetCapturedStderr();
  };
  const auto says_why = ::testing::HasSubstr("io_uring does not poll for completions");
  EXPECT_THAT(log_of({.completion_polling = true}), says_why);
  EXPECT_THAT(log_of({}), ::testing::Not(says_why));
}

TEST(MakeEngine, RefusesAQueueThatIsEmptyOrEndless) {
  for (const std::size_t depth : {std::size_t{0}, std::size_t{1} << 20}) {
    for (const EngineKind kind :
         {EngineKind::posix, EngineKind::uring, EngineKind::aio, EngineKind::automatic}) {
      EXPECT_EQ(code_of([&] {
                  static_cast<void>(make_engine(kind, {.files = {}, .queue_depth = depth}));
                }),
                ErrorCode::invalid_argument);
    }
  }
}

TEST(ParseEngine, KnowsTheNamesOfTheCommandLine) {
  EXPECT_EQ(parse_engine("auto"), EngineKind::automatic);
  EXPECT_EQ(parse_engine("uring"), EngineKind::uring);
  EXPECT_EQ(parse_engine("aio"), EngineKind::aio);
  EXPECT_EQ(parse_engine("posix"), EngineKind::posix);
  EXPECT_THAT(message_of([] { static_cast<void>(parse_engine("nvme")); }),
              ::testing::HasSubstr("'nvme'"));
}

class FailingEngineTest : public IoEngineContract {
 protected:
  FailingEngineTest() {
    engine_.reset();
    const EngineOptions options{.files = files_, .queue_depth = kDepth, .wake = &wake_};
    auto made = std::make_unique<FailingEngine>(GetParam().make(options), options);
    failing_ = made.get();
    engine_ = std::move(made);
    PageBuffer source = tile_content(16_KiB, 1, 1);
    EXPECT_EQ(run(request(IoOperation::write, 0, 0, source.bytes())), 16384);
  }
  std::int64_t read() { return run(request(IoOperation::read, 0, 0, target_.bytes())); }
  std::int64_t write() { return run(request(IoOperation::write, 1, 0, target_.bytes())); }

  FailingEngine* failing_ = nullptr;
  PageBuffer target_{16384};
};

TEST_P(FailingEngineTest, SpoilsTheChosenOperationsOnly) {
  failing_->arm({.operation = IoOperation::read, .first = 2, .count = 2, .error = ENOSPC});
  EXPECT_EQ(read(), 16384);
  EXPECT_EQ(write(), 16384);
  EXPECT_EQ(read(), -ENOSPC);
  EXPECT_EQ(write(), 16384);
  EXPECT_EQ(read(), -ENOSPC);
  EXPECT_EQ(read(), 16384);
  EXPECT_EQ(failing_->spoiled(), 2U);
  EXPECT_EQ(failing_->taken(IoOperation::read), 4U);
  EXPECT_EQ(failing_->taken(), 7U);
}

TEST_P(FailingEngineTest, ShortensZeroesLosesAndDelays) {
  failing_->arm({.action = FaultAction::shorten, .length = 4096});
  EXPECT_EQ(read(), 4096);
  failing_->arm({.action = FaultAction::zero});
  EXPECT_EQ(read(), 0);
  failing_->arm({.action = FaultAction::lose});
  std::fill(target_.bytes().begin(), target_.bytes().end(), std::byte{7});
  EXPECT_EQ(read(), 16384);
  EXPECT_EQ(target_.bytes()[9000], std::byte{7}) << "a lost read leaves the buffer alone";
  failing_->arm({.action = FaultAction::delay, .delay = std::chrono::milliseconds{30}});
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(read(), 16384);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds{30});
  failing_->arm({});
  failing_->disarm();
  EXPECT_EQ(read(), 16384);
}

TEST_P(FailingEngineTest, LetsTheNextOperationOvertakeTheChosenOne) {
  PageBuffer early = tile_content(4_KiB, 1, 1);
  PageBuffer late = tile_content(4_KiB, 2, 2);
  const std::array requests{request(IoOperation::write, 0, 5, early.bytes()),
                            request(IoOperation::read, 1, 0, target_.bytes())};
  failing_->arm({.action = FaultAction::reorder, .operation = IoOperation::write});
  ASSERT_EQ(engine_->submit(requests), 2U);
  EXPECT_EQ(collect(2).at(requests[0].tag), 4096);
  EXPECT_EQ(failing_->spoiled(), 1U);
  // Alone, it is performed all the same.
  failing_->arm({.action = FaultAction::reorder});
  EXPECT_EQ(run(request(IoOperation::write, 0, 5, late.bytes())), 4096);
  failing_->disarm();
  EXPECT_EQ(run(request(IoOperation::read, 0, 5, early.bytes())), 4096);
  EXPECT_TRUE(same_bytes(early.bytes(), late.bytes()));
}

INSTANTIATE_TEST_SUITE_P(Engines, FailingEngineTest,
                         ::testing::Values(EngineCase{"posix", kPosix}, EngineCase{"aio", kAio},
                                           EngineCase{"uring", kUring}),
                         name_of_case);

class RegisteredBuffersTest : public IoEngineContract {};

TEST_P(RegisteredBuffersTest, MoveTheSameBytesAsOtherMemory) {
  // Two neighbours, so that a request may straddle them, and memory that nobody registered.
  PageBuffer memory(8 * kPageBytes);
  const std::array<std::span<std::byte>, 2> registered{
      memory.bytes().subspan(4 * kPageBytes, 2 * kPageBytes),
      memory.bytes().subspan(2 * kPageBytes, 2 * kPageBytes)};
  engine_.reset();
  engine_ = GetParam().make(
      {.files = files_, .queue_depth = kDepth, .wake = &wake_, .buffers = registered});
  EXPECT_TRUE(engine_->abilities().registered_buffers || engine_->name() != "uring");
  for (std::size_t first = 0; first < 8; ++first) {
    for (std::size_t pages = 1; first + pages <= 8; ++pages) {
      const auto part = memory.bytes().subspan(first * kPageBytes, pages * kPageBytes);
      fill_tile(part, first, pages);
      const auto bytes = static_cast<std::int64_t>(part.size());
      ASSERT_EQ(run(request(IoOperation::write, 0, first, part)), bytes);
      std::fill(part.begin(), part.end(), std::byte{0});
      ASSERT_EQ(run(request(IoOperation::read, 0, first, part)), bytes);
      ASSERT_TRUE(same_bytes(part, tile_content(Bytes{part.size()}, first, pages).bytes()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, RegisteredBuffersTest,
                         ::testing::Values(EngineCase{"posix", kPosix}, EngineCase{"aio", kAio},
                                           EngineCase{"uring", kUring},
                                           EngineCase{"uringThread", with_submission_thread()}),
                         name_of_case);

TEST(ThrottledEngine, TakesAsLongAsTheDiskWould) {
  ScratchDirectory scratch;
  const int file = ::open((scratch.path() / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const int files[] = {file};
  const EngineOptions options{.files = files, .queue_depth = 4};
  // 8 x 64 KiB at 10 MB/s are 52 ms.
  const auto engine =
      detail::make_throttled_engine(make_engine(EngineKind::posix, options), options, 0.01);
  PageBuffer data(65536);
  const auto begin = std::chrono::steady_clock::now();
  std::size_t sent = 0;
  for (std::size_t done = 0; done < 8;) {
    const IoRequest request{.operation = IoOperation::write,
                            .file = file,
                            .data = data.bytes().data(),
                            .length = 65536,
                            .tag = sent};
    if (sent < 8) sent += engine->submit({&request, 1});
    IoResult result;
    done += engine->poll({&result, 1});
    if (sent == 8 || sent - done == 4) engine->wait();
  }
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds{52});
  ::close(file);
}

}  // namespace
}  // namespace spillway::nvme_swap::io_engine_test
