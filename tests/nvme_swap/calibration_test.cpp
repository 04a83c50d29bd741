// Loads on a scratch file, and what is derived from them: data that is wrong is noticed, and the
// tuning is one that the drive was seen to do.
#include "nvme_swap/calibration.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "nvme_swap/drive_load.hpp"
#include "nvme_swap/format.hpp"
#include "tests/nvme_swap/recording_engine.hpp"
#include "tests/nvme_swap/test_support.hpp"

namespace spillway::nvme_swap::calibration_test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class DriveLoadTest : public ::testing::TestWithParam<EngineKind> {
 protected:
  LoadResult run(AccessPattern pattern) {
    return run_load(file_, {.pattern = pattern,
                            .engine = GetParam(),
                            .queue_depth = 4,
                            .block = 64_KiB,
                            .duration = milliseconds{20}});
  }
  ScratchDirectory scratch_;
  DriveFile file_{scratch_.path(), 4_MiB};
};

TEST_P(DriveLoadTest, MovesWhatItSaysAndKeepsTheFileWhole) {
  const LoadResult read = run(AccessPattern::read);
  EXPECT_GT(read.read.value(), 0U);
  EXPECT_EQ(read.written.value(), 0U);
  const LoadResult write = run(AccessPattern::write);
  EXPECT_EQ(write.read.value(), 0U);
  EXPECT_GT(write.written.value(), 0U);
  const LoadResult mixed = run(AccessPattern::mixed);
  EXPECT_LE(std::max(mixed.read, mixed.written) - std::min(mixed.read, mixed.written), 64_KiB);
  EXPECT_GT(mixed.gigabytes_per_second(), 0);
  EXPECT_EQ(mixed.engine, name_of(GetParam()));
  verify_all(file_, GetParam());
  EXPECT_TRUE(std::filesystem::is_empty(scratch_.path())) << "the file has a name";
}

/// Whether a write begins while another one of its block is on its way.
bool writes_meet(const Recording& recording) {
  std::map<std::uint64_t, std::size_t> begun;  // operation by offset
  for (const RecordedEvent& event : recording) {
    if (event.kind == RecordedEvent::Kind::write_begun) {
      if (!begun.emplace(event.offset, event.operation).second) return true;
    } else {
      std::erase_if(begun, [&](const auto& entry) { return entry.second == event.operation; });
    }
  }
  return false;
}

/// Keeps the result of the third operation back until `kAhead` later ones are over, or all are.
class LateEngine final : public IoEngine {
 public:
  static constexpr std::size_t kAhead = 24;
  explicit LateEngine(std::unique_ptr<IoEngine> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] std::string_view name() const override { return inner_->name(); }
  [[nodiscard]] EngineAbilities abilities() const override { return inner_->abilities(); }
  [[nodiscard]] std::size_t submit(std::span<const IoRequest> requests) override {
    const std::size_t count = inner_->submit(requests);
    for (const IoRequest& request : requests.first(count)) {
      if (++submitted_ == 3) late_ = request.tag;
    }
    return count;
  }
  [[nodiscard]] std::size_t poll(std::span<IoResult> results) override {
    std::size_t count = inner_->poll(results);
    finished_ += count;
    over_ = over_ || finished_ >= kAhead;
    const auto end = results.begin() + static_cast<std::ptrdiff_t>(count);
    const auto late = std::find_if(results.begin(), end, [this](const IoResult& result) {
      return !held_ && !over_ && result.tag == late_;
    });
    if (late != end) {
      held_ = *late;
      late_.reset();
      *late = results[--count];
    }
    if (held_ && over_ && count < results.size()) {
      results[count++] = *std::exchange(held_, std::nullopt);
    }
    return count;
  }
  void wait() override {
    over_ = over_ || finished_ == submitted_;  // nothing more comes
    if (!held_ || !over_) inner_->wait();
  }

 private:
  std::unique_ptr<IoEngine> inner_;
  std::size_t submitted_ = 0, finished_ = 0;
  bool over_ = false;
  std::optional<std::uint64_t> late_;
  std::optional<IoResult> held_;
};

// The others come round to the block of a late write; on a busy machine they need longer.
TEST_P(DriveLoadTest, NeverHasTwoWritesOfABlockInFlight) {
  DriveFile file(scratch_.path(), 2_MiB);
  Recording recording;
  const auto adapt = [&](std::unique_ptr<IoEngine> inner, const EngineOptions& options) {
    return std::make_unique<RecordingEngine>(std::make_unique<LateEngine>(std::move(inner)),
                                             options, recording);
  };
  for (milliseconds time{10}; recording.size() <= 3 * LateEngine::kAhead; time *= 4) {
    recording.clear();
    static_cast<void>(run_load(file, {.pattern = AccessPattern::write,
                                      .engine = GetParam(),
                                      .queue_depth = 4,
                                      .block = 256_KiB,
                                      .duration = time,
                                      .adapt = adapt}));
  }
  EXPECT_FALSE(writes_meet(recording));
  verify_all(file, GetParam());
}

TEST_P(DriveLoadTest, NoticesOneWrongByte) {
  PageBuffer page(kPageBytes);
  const off_t offset = 37 * kPageBytes;
  ASSERT_EQ(::pread(file_.descriptor(), page.bytes().data(), kPageBytes, offset), 4096);
  page.bytes()[4000] ^= std::byte{1};
  ASSERT_EQ(::pwrite(file_.descriptor(), page.bytes().data(), kPageBytes, offset), 4096);
  EXPECT_EQ(code_of([&] { return run(AccessPattern::read); }), ErrorCode::corrupt_data);
  EXPECT_THAT(message_of([&] { return run(AccessPattern::read); }), HasSubstr("offset 151552"));
  file_.refill();
  verify_all(file_, GetParam());
}

TEST_P(DriveLoadTest, NoticesAPageThatIsStaleOrElsewhere) {
  PageBuffer page(kPageBytes);
  ASSERT_EQ(::pread(file_.descriptor(), page.bytes().data(), kPageBytes, 0), 4096);
  file_.refill();
  ASSERT_EQ(::pwrite(file_.descriptor(), page.bytes().data(), kPageBytes, 0), 4096);
  EXPECT_THAT(message_of([&] { return run(AccessPattern::read); }), HasSubstr("write 1 of"));
  file_.refill();
  ASSERT_EQ(::pread(file_.descriptor(), page.bytes().data(), kPageBytes, 4096), 4096);
  ASSERT_EQ(::pwrite(file_.descriptor(), page.bytes().data(), kPageBytes, 0), 4096);
  EXPECT_THAT(message_of([&] { return run(AccessPattern::read); }), HasSubstr("of offset 4096"));
}

INSTANTIATE_TEST_SUITE_P(Engines, DriveLoadTest, ::testing::ValuesIn(kEngines),
                         [](const ::testing::TestParamInfo<EngineKind>& entry) {
                           return name_of(entry.param);
                         });

TEST(DriveLoad, RefusesWhatCannotBeMeasured) {
  ScratchDirectory scratch(Medium::memory);
  DriveFile file(scratch.path(), 2_MiB);
  EXPECT_EQ(code_of([&] { return run_load(file, {.block = 3_MiB}); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { return run_load(file, {.queue_depth = 64, .block = 64_KiB}); }),
            ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] {
              static_cast<void>(DriveFile(scratch.path(), 5_KiB));
              return 0;
            }),
            ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] {
              static_cast<void>(DriveFile(scratch.path(), Bytes{1ULL << 44}));
              return 0;
            }),
            ErrorCode::does_not_fit);
}

TEST(Calibration, GivesATuningThatAStoreCanUse) {
  ScratchDirectory scratch;
  const DriveTuning tuning = calibrate_drive({.directory = scratch.path(),
                                              .file_bytes = 16_MiB,
                                              .point = milliseconds{5},
                                              .buffer_bytes = 8_MiB});
  EXPECT_GT(tuning.read_gbps, 0);
  EXPECT_GT(tuning.write_gbps, 0);
  EXPECT_GT(tuning.mixed_gbps, 0);
  EXPECT_LE(tuning.queue_depth * tuning.transfer_bytes.value(), (8_MiB).value());
  StoreOptions options = small_options(scratch.path());
  options.engine = parse_engine(tuning.engine);
  options.queue_depth = tuning.queue_depth;
  options.transfer_bytes = tuning.transfer_bytes;
  const auto store = TileStore::create(options, layout_of(2, 40_KiB));
  write_step(*store, 1);
  expect_step(*store, 1);
}

TEST(Calibration, KeepsWithinItsMemoryHoweverLittle) {
  ScratchDirectory scratch(Medium::memory);
  for (const Bytes memory : {512_KiB, 1_MiB, 3_MiB, 8_MiB}) {
    const DriveTuning tuning = calibrate_drive({.directory = scratch.path(),
                                                .engine = EngineKind::uring,
                                                .file_bytes = 16_MiB,
                                                .point = milliseconds{1},
                                                .buffer_bytes = memory});
    EXPECT_GE(tuning.queue_depth, 1U);
    EXPECT_LE(tuning.queue_depth * tuning.transfer_bytes.value(), memory.value());
    EXPECT_GT(tuning.mixed_gbps, 0);
  }
}

// Of the transfer sizes, that of 2 MiB is the first that does not divide half of this file.
TEST(Calibration, TriesEveryTransferSizeThatHasRoomInFlight) {
  ScratchDirectory scratch(Medium::memory);
  const CalibrationOptions options{
      .directory = scratch.path(), .file_bytes = 6_MiB, .point = milliseconds{1}};
  EXPECT_THAT(message_of([&] { return calibrate_drive(options); }),
              HasSubstr("blocks of 2097152 bytes do not divide half of a file of 6.00 MiB"));
}

TEST(Calibration, IsMadeToFitADriveAndAMemoryThatAreSmall) {
  const CalibrationOptions usual{.directory = "/drive"};
  const CalibrationOptions same = made_to_fit(usual, 1_GiB, 1_GiB);
  EXPECT_EQ(same.file_bytes, usual.file_bytes);
  EXPECT_EQ(same.buffer_bytes, usual.buffer_bytes);
  EXPECT_EQ(made_to_fit(usual, 1_GiB, 100_MiB).file_bytes, 64_MiB);
  EXPECT_EQ(made_to_fit(usual, 3_MiB, 1_GiB).buffer_bytes, 3_MiB);
  EXPECT_THAT(message_of([&] { return made_to_fit(usual, 1_GiB, 1_MiB); }),
              ::testing::AllOf(HasSubstr("/drive"), HasSubstr("it has 1.00 MiB free")));
  EXPECT_EQ(code_of([&] { return made_to_fit(usual, 512_KiB, 1_GiB); }), ErrorCode::does_not_fit);

  // What is made to fit can be measured.
  ScratchDirectory scratch(Medium::memory);
  for (const Bytes file : {2_MiB, 5_MiB, 40_MiB}) {
    CalibrationOptions small = made_to_fit({.directory = scratch.path()}, 1_MiB, file);
    small.point = milliseconds{1};
    EXPECT_LE(small.file_bytes, file);
    EXPECT_GT(calibrate_drive(small).mixed_gbps, 0);
  }
}

TEST(Calibration, WeighsDrivesByTheirMixedRate) {
  const std::vector<DriveTuning> drives{{.mixed_gbps = 3}, {.mixed_gbps = 1.5}};
  EXPECT_THAT(stripe_weights(drives), ::testing::ElementsAre(3, 1.5));
}

std::vector<std::uint64_t> bytes_by_file(const StoreMap& map) {
  std::vector<std::uint64_t> bytes(map.file_bytes.size());
  for (const TileEntry& tile : map.tiles) bytes[tile.file] += tile.bytes;
  return bytes;
}

TEST(Striping, SharesTilesByWeightAndAllTheWay) {
  const std::vector<double> weights{3.0, 1.0, 2.0};
  const StoreMap map = plan_store(std::vector(600, 8_KiB), 2, weights, {});
  EXPECT_THAT(bytes_by_file(map), ::testing::ElementsAre(300 * 8192, 100 * 8192, 200 * 8192));
  // Any dozen neighbours keep all drives busy in proportion, within a tile.
  for (std::size_t first = 0; first + 12 <= 600; ++first) {
    std::vector<std::size_t> count(3);
    for (std::size_t i = 0; i < 12; ++i) ++count[map.tiles[first + i].file];
    EXPECT_NEAR(static_cast<double>(count[0]), 6, 1);
    EXPECT_NEAR(static_cast<double>(count[1]), 2, 1);
    EXPECT_NEAR(static_cast<double>(count[2]), 4, 1);
  }
}

TEST(Striping, OfTilesOfManySizesEndsOnAllDrivesTogether) {
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < 100; ++i) {
    std::vector<Bytes> tiles;
    std::vector<double> weights;
    for (std::size_t tile = 0; tile < 400; ++tile) tiles.emplace_back(4096 * (1 + random() % 9));
    for (std::size_t file = 0; file < 1 + random() % 4; ++file) {
      weights.push_back(0.5 + static_cast<double>(random() % 100) / 20);
    }
    const auto bytes = bytes_by_file(plan_store(tiles, 2, weights, {}));
    double slowest = 0;
    for (std::size_t file = 0; file < bytes.size(); ++file) {
      slowest = std::max(slowest, static_cast<double>(bytes[file]) / weights[file]);
    }
    const double total =
        static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0}));
    const double ideal = total / std::accumulate(weights.begin(), weights.end(), 0.0);
    EXPECT_LE(slowest, ideal + 9 * 4096 / 0.5);
  }
}

TEST(Striping, SurvivesReopeningWithoutItsWeights) {
  ScratchDirectory scratch(Medium::memory);
  StoreOptions options = small_options(scratch.path(), 2);
  options.weights = {3, 1};
  {
    const auto store = TileStore::create(options, layout_of(8, 8_KiB));
    write_step(*store, 1);
    commit_step(*store, 1);
  }
  options.weights.clear();
  const auto large = std::filesystem::file_size(swap_file_path(options.directories[0], "tiles", 0));
  const auto small = std::filesystem::file_size(swap_file_path(options.directories[1], "tiles", 1));
  EXPECT_GT(large, 2 * small);
  expect_step(*TileStore::open(options), 1);
}

TEST(Striping, RefusesWeightsThatMeanNothing) {
  ScratchDirectory scratch(Medium::memory);
  StoreOptions options = small_options(scratch.path(), 2);
  for (const std::vector<double>& weights :
       {std::vector<double>{1}, {1, 0}, {1, -1}, {1, std::nan("")}}) {
    options.weights = weights;
    EXPECT_EQ(code_of([&] { return TileStore::create(options, layout_of(8, 8_KiB)); }),
              ErrorCode::invalid_argument);
  }
}

}  // namespace
}  // namespace spillway::nvme_swap::calibration_test
