// A run that uses its store as training does, recorded, so that a power cut can be tried at any
// instant of it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nvme_swap/format.hpp"
#include "tests/nvme_swap/power_cut.hpp"
#include "tests/nvme_swap/test_support.hpp"

namespace spillway::nvme_swap {

inline constexpr std::uint64_t kPowerCutSteps = 5;

/// How a run uses its store.
struct PowerCutRun {
  std::string name;
  std::uint32_t slots;
  std::uint64_t commit_every;
  bool commits_behind;      ///< the next step writes while the commit is in progress
  bool speculates = false;  ///< some tiles are written ahead: kept in every other step, else undone
};

/// Treats a store as a training run does: reads run ahead of the update and writes behind it, tiles
/// go up in one step and down in the next, and a step's state comes from the one before.
class TrainingRun {
 public:
  TrainingRun(TileStore& store, const PowerCutRun& how, Recording& recording)
      : store_(store), how_(how), recording_(recording) {}

  void begin() {
    write_step(store_, 0);
    commit(0);
    end_commit();
  }

  void step(std::uint64_t step) {
    const auto all = static_cast<std::uint32_t>(store_.layout().tiles.size());
    update({0, first_kept_ == 0 ? all : first_kept_}, step, step);
    first_kept_ = 0;
    end_commit();
    if (step % how_.commit_every == 0) commit(step);
    if (!how_.commits_behind) end_commit();
    if (how_.speculates) speculate(step);
  }

  void end_commit() {
    if (!commit_.pending()) return;
    commit_.wait();
    recording_.push_back({.kind = RecordedEvent::Kind::commit_reported, .step = committing_});
  }

 private:
  static constexpr std::uint32_t kAhead = 2;
  static constexpr std::uint64_t kUndone = 1000;  ///< added to the step of what no commit may name

  struct Range {
    std::uint32_t first;
    std::uint32_t end;
  };

  /// Writes the latter tiles of the next step once the commit is durable, and keeps or undoes them.
  void speculate(std::uint64_t step) {
    const auto all = static_cast<std::uint32_t>(store_.layout().tiles.size());
    const bool kept = step % 2 == 0;
    update({all / 2, all}, step + 1, kept ? step + 1 : kUndone + step);
    if (kept) {
      first_kept_ = all / 2;
      return;
    }
    for (std::uint32_t tile = all / 2; tile < all; ++tile) store_.discard(TileIndex{tile});
  }

  /// Brings tiles to a step; `content`: the step whose content they get.
  void update(const Range& range, std::uint64_t step, std::uint64_t content) {
    const std::uint32_t tiles = range.end - range.first;
    std::vector<PageBuffer> buffers;
    std::vector<Ticket> reads(tiles);
    std::vector<Ticket> writes(tiles);
    buffers.reserve(tiles);
    const auto tile_of = [&](std::uint32_t i) {
      return TileIndex{step % 2 == 0 ? range.first + i : range.end - 1 - i};
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
      fill_tile(buffers[now].bytes(), tile.value(), content);
      writes[now] = store_.write(tile, buffers[now].bytes(), checksum_of(buffers[now].bytes()));
    }
    for (Ticket& write : writes) write.wait();
  }

  void commit(std::uint64_t step) {
    committing_ = step;
    commit_ = store_.commit(header_of(step));
  }

  TileStore& store_;
  const PowerCutRun& how_;
  Recording& recording_;
  Ticket commit_;
  std::uint64_t committing_ = 0;
  std::uint32_t first_kept_ = 0;  // of the tiles that the step before has written ahead; 0: none
};

/// A store in memory whose writes and flushes are recorded, and what can be done with the
/// recording.
class PowerCutTest : public ::testing::TestWithParam<PowerCutRun> {
 protected:
  PowerCutTest() : options_(small_options(scratch_.path() / "run", 2)) {
    options_.slots = GetParam().slots;
    options_.cache = CacheUse::always;
    options_.tickets = 32;
  }

  /// Notes in `recording_` what the engines of stores made with the options do from now on.
  void record_engines(StoreOptions& options) {
    options.adapt = [this](std::unique_ptr<IoEngine> inner, const EngineOptions& engine) {
      return std::make_unique<RecordingEngine>(std::move(inner), engine, recording_);
    };
  }

  /// From files that are there and durable, or from none at all.
  void record(bool from_creation) {
    record_engines(options_);
    const auto store = TileStore::create(options_, {{12_KiB, 8_KiB, 4_KiB, 8_KiB}});
    for (std::size_t i = 0; i < 2; ++i) {
      fresh_.push_back(load_image(swap_file_path(options_.directories[i], options_.name, i)));
      if (from_creation) std::fill(fresh_[i].begin(), fresh_[i].end(), std::byte{0});
    }
    if (!from_creation) recording_.clear();
    TrainingRun run(*store, GetParam(), recording_);
    run.begin();
    for (std::uint64_t step = 1; step <= kPowerCutSteps && !from_creation; ++step) run.step(step);
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

inline const auto kPowerCutRuns = ::testing::Values(
    PowerCutRun{.name = "everyStep", .slots = 2, .commit_every = 1, .commits_behind = false},
    PowerCutRun{.name = "everyStepSpeculating",
                .slots = 2,
                .commit_every = 1,
                .commits_behind = false,
                .speculates = true},
    PowerCutRun{.name = "everyStepBehind", .slots = 3, .commit_every = 1, .commits_behind = true},
    PowerCutRun{.name = "everySecondStep", .slots = 3, .commit_every = 2, .commits_behind = true});

inline std::string name_of_run(const ::testing::TestParamInfo<PowerCutRun>& entry) {
  return entry.param.name;
}

}  // namespace spillway::nvme_swap
