// A power cut at any instant, losing or tearing whatever was not flushed, leaves a committed step:
// every prefix of the writes and flushes of a run, and sampled reorderings of what is in flight
// (`SPILLWAY_TEST_POWER_CUTS` of them for each kind of run).
#include "tests/nvme_swap/power_cut.hpp"

#include <gtest/gtest.h>

#include "tests/nvme_swap/test_support.hpp"

namespace spillway::nvme_swap {
namespace {

constexpr std::uint64_t kSteps = 5;

/// How a run uses its store.
struct RunCase {
  std::string name;
  std::uint32_t slots;
  std::uint64_t commit_every;
  bool commits_behind;  ///< the next step writes while the commit is in progress
};

/// Does to a store what a training run does to it: reads run ahead of the update and writes behind
/// it, tiles go up in one step and down in the next, and a step's state comes from the one before.
class TrainingRun {
 public:
  TrainingRun(TileStore& store, const RunCase& how, Recording& recording)
      : store_(store), how_(how), recording_(recording) {}

  void begin() {
    write_step(store_, 0);
    commit(0);
    end_commit();
  }

  void step(std::uint64_t step) {
    const auto tiles = static_cast<std::uint32_t>(store_.layout().tiles.size());
    std::vector<PageBuffer> buffers;
    std::vector<Ticket> reads(tiles);
    std::vector<Ticket> writes(tiles);
    buffers.reserve(tiles);
    const auto tile_of = [&](std::uint32_t i) {
      return TileIndex{step % 2 == 0 ? i : tiles - 1 - i};
    };
    for (std::uint32_t i = 0; i < tiles + kAhead; ++i) {
      if (i < tiles) {
        buffers.emplace_back(store_.layout().tiles[tile_of(i).value()].value());
        reads[i] = store_.read(tile_of(i), buffers[i].bytes());
      }
      if (i < kAhead) continue;
      const std::uint32_t now = i - kAhead;
      const TileIndex tile = tile_of(now);
      reads[now].wait();
      store_.verify(tile, buffers[now].bytes());
      const PageBuffer before =
          tile_content(Bytes{buffers[now].bytes().size()}, tile.value(), step - 1);
      ASSERT_TRUE(same_bytes(buffers[now].bytes(), before.bytes()));
      fill_tile(buffers[now].bytes(), tile.value(), step);
      writes[now] = store_.write(tile, buffers[now].bytes(), checksum_of(buffers[now].bytes()));
    }
    for (Ticket& write : writes) write.wait();
    end_commit();
    if (step % how_.commit_every == 0) commit(step);
    if (!how_.commits_behind) end_commit();
  }

  void end_commit() {
    if (!commit_.pending()) return;
    commit_.wait();
    recording_.push_back({.kind = RecordedEvent::Kind::commit_reported, .step = committing_});
  }

 private:
  static constexpr std::uint32_t kAhead = 2;

  void commit(std::uint64_t step) {
    committing_ = step;
    commit_ = store_.commit(header_of(step));
  }

  TileStore& store_;
  const RunCase& how_;
  Recording& recording_;
  Ticket commit_;
  std::uint64_t committing_ = 0;
};

class PowerCut : public ::testing::TestWithParam<RunCase> {
 protected:
  PowerCut() : options_(small_options(scratch_.path() / "run", 2)) {
    options_.slots = GetParam().slots;
    options_.cache = CacheUse::always;
    options_.tickets = 32;
  }

  /// From files that are there and durable, or from none at all.
  void record(bool from_creation) {
    options_.adapt = [this](std::unique_ptr<IoEngine> inner, const EngineOptions& engine) {
      return std::make_unique<RecordingEngine>(std::move(inner), engine, recording_);
    };
    const auto store = TileStore::create(options_, {{12_KiB, 8_KiB, 4_KiB, 8_KiB}});
    for (std::size_t i = 0; i < 2; ++i) {
      fresh_.push_back(load_image(swap_file_path(options_.directories[i], options_.name, i)));
      if (from_creation) std::fill(fresh_[i].begin(), fresh_[i].end(), std::byte{0});
    }
    if (!from_creation) recording_.clear();
    TrainingRun run(*store, GetParam(), recording_);
    run.begin();
    for (std::uint64_t step = 1; step <= kSteps && !from_creation; ++step) run.step(step);
    run.end_commit();
    options_.adapt = nullptr;
  }

  StoreOptions put_on_disk(const CutDisk& disk) {
    StoreOptions options = options_;
    options.engine = EngineKind::uring;  // no threads to start and end for each sample
    for (std::size_t i = 0; i < 2; ++i) {
      options.directories[i] = scratch_.path() / ("cut" + std::to_string(i));
      std::filesystem::create_directories(options.directories[i]);
      save_image(disk.images()[i], swap_file_path(options.directories[i], options.name, i));
    }
    return options;
  }

  /// Recovers from the images and checks that one committed step is there, whole.
  void check(const CutDisk& disk, bool any_reported) {
    const StoreOptions options = put_on_disk(disk);
    if (TileStore::content(options) != StoreContent::committed) {
      ASSERT_FALSE(any_reported) << "a committed step is gone";
      return;
    }
    const auto store = TileStore::open(options);
    const std::uint64_t step = store->committed()->step.value();
    EXPECT_GE(step, disk.reported()) << "a committed step is gone";
    EXPECT_LE(step, disk.reported() + GetParam().commit_every);
    EXPECT_EQ(store->committed()->payload, header_of(step).payload);
    expect_step(*store, step);
  }

  /// Whether a commit was reported before `cut`.
  [[nodiscard]] bool reported_before(std::size_t cut) const {
    return std::any_of(recording_.begin(), recording_.begin() + static_cast<std::ptrdiff_t>(cut),
                       [](const RecordedEvent& event) {
                         return event.kind == RecordedEvent::Kind::commit_reported;
                       });
  }

  const QuietLog quiet_;
  ScratchDirectory scratch_{Medium::memory};
  StoreOptions options_;
  std::vector<Image> fresh_;
  Recording recording_;
};

TEST_P(PowerCut, LeavesACommittedStepWholeAtEveryInstant) {
  record(false);
  ASSERT_GT(recording_.size(), 80U);
  for (std::size_t cut = 0; cut <= recording_.size(); ++cut) {
    for (const bool keep : {false, true}) {
      CutDisk disk(fresh_, recording_, cut);
      if (keep) disk.keep_all();
      ASSERT_NO_THROW(check(disk, reported_before(cut))) << "cut before event " << cut;
      ASSERT_FALSE(HasFailure()) << "cut before event " << cut << " keep " << keep;
    }
  }
}

TEST_P(PowerCut, LeavesACommittedStepWholeInAnyOrderOfWhatIsInFlight) {
  std::mt19937_64 random(test_seed());
  const std::size_t samples = count_from("SPILLWAY_TEST_POWER_CUTS", 3500);
  record(false);
  for (std::size_t sample = 0; sample < samples; ++sample) {
    const std::size_t cut = random() % (recording_.size() + 1);
    CutDisk disk(fresh_, recording_, cut);
    disk.settle(random);
    ASSERT_NO_THROW(check(disk, reported_before(cut))) << "cut before event " << cut;
    ASSERT_FALSE(HasFailure()) << "cut before event " << cut << " sample " << sample;
  }
}

TEST_P(PowerCut, DuringCreationLeavesNothingOrAWholeStore) {
  std::mt19937_64 random(test_seed());
  record(true);
  for (std::size_t cut = 0; cut <= recording_.size(); ++cut) {
    for (int sample = 0; sample < 30; ++sample) {
      CutDisk disk(fresh_, recording_, cut);
      if (sample == 1) disk.keep_all();
      if (sample > 1) disk.settle(random);
      const StoreOptions options = put_on_disk(disk);
      bool committed = false;
      try {
        committed = TileStore::has_commit(options);
      } catch (const Error& error) {
        // A header that was torn: not a store, but never taken for a fresh one either.
        EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
        ASSERT_FALSE(reported_before(cut)) << error.what();
        continue;
      }
      ASSERT_TRUE(committed || !reported_before(cut)) << "cut before event " << cut;
      if (committed) {
        expect_step(*TileStore::open(options), 0);
      } else {
        write_step(*TileStore::create(options, layout_of(2, 4_KiB)), 9);
      }
      ASSERT_FALSE(HasFailure()) << "cut before event " << cut << " sample " << sample;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Runs, PowerCut,
    ::testing::Values(
        RunCase{.name = "everyStep", .slots = 2, .commit_every = 1, .commits_behind = false},
        RunCase{.name = "everyStepBehind", .slots = 3, .commit_every = 1, .commits_behind = true},
        RunCase{.name = "everySecondStep", .slots = 3, .commit_every = 2, .commits_behind = true}),
    [](const ::testing::TestParamInfo<RunCase>& entry) { return entry.param.name; });

}  // namespace
}  // namespace spillway::nvme_swap
