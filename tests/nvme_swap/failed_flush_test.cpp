// A commit flushes every file that was written. Whichever of those flushes fails, and whatever the
// others say, the commit has failed: nobody knows what the kernel still holds of that file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/nvme_swap/test_support.hpp"

namespace spillway::nvme_swap::failed_flush_test {
namespace {

constexpr std::size_t kFiles = 3;

class FailedFlush : public ::testing::TestWithParam<EngineKind> {
 protected:
  /// Step 2 over step 1 with flush number `n` of its commit failing.
  void fail_flush(std::uint64_t n) {
    const ScratchDirectory scratch(Medium::memory);
    StoreOptions options = small_options(scratch.path(), kFiles);
    options.engine = GetParam();
    FailingEngine* faults = nullptr;
    make_failing(options, faults);
    {
      const auto store = TileStore::create(options, layout_of(2 * kFiles, 8_KiB));
      write_step(*store, 1);
      commit_step(*store, 1);
      write_step(*store, 2);
      faults->arm({.operation = IoOperation::flush, .first = n, .error = EIO});
      const std::string message = message_of([&] { return commit_step(*store, 2), 0; });
      EXPECT_EQ(faults->spoiled(), 1U);
      EXPECT_THAT(message, ::testing::HasSubstr("flush")) << "flush " << n << " was forgotten";
      // Nor is it forgotten by the next commit, whose flushes all succeed.
      EXPECT_EQ(code_of([&] { return commit_step(*store, 2), 0; }), ErrorCode::io_error);
    }
    faults = nullptr;
    const auto store = TileStore::open(options);
    ASSERT_TRUE(store->committed());
    // Data flushes come before the record, so a failed one leaves the step before.
    if (n <= kFiles) {
      EXPECT_EQ(store->committed()->step, StepIndex{1});
    }
    expect_step(*store, store->committed()->step.value());
  }

  const QuietLog quiet_;
};

TEST_P(FailedFlush, FailsTheCommitWhateverTheFlushesBesideItSay) {
  for (std::uint64_t n = 1; n <= kFiles + 1; ++n) fail_flush(n);
}

INSTANTIATE_TEST_SUITE_P(Engines, FailedFlush, ::testing::ValuesIn(kEngines),
                         [](const ::testing::TestParamInfo<EngineKind>& entry) {
                           return name_of(entry.param);
                         });

}  // namespace
}  // namespace spillway::nvme_swap::failed_flush_test
