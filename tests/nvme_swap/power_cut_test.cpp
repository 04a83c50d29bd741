// A power cut at any instant, losing or tearing whatever was not flushed, leaves a committed step.
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "tests/nvme_swap/recording_engine.hpp"
#include "tests/nvme_swap/test_support.hpp"

namespace spillway::nvme_swap {
namespace {

using Kind = RecordedEvent::Kind;
using Image = std::vector<std::byte>;

constexpr std::size_t kSectorBytes = 512;

Image load(const std::filesystem::path& path) {
  Image image(std::filesystem::file_size(path));
  std::ifstream(path, std::ios::binary)
      .read(reinterpret_cast<char*>(image.data()), static_cast<std::streamsize>(image.size()));
  return image;
}

/// What the disk holds after a cut before event `cut`.
class Disk {
 public:
  Disk(const std::vector<Image>& fresh, const Recording& recording, std::size_t cut)
      : images_(fresh) {
    // A flush makes durable the writes to its file that had ended when it began.
    std::set<std::size_t> ended;
    std::vector<std::pair<std::size_t, std::set<std::size_t>>> flushes;  // operation, covered
    std::set<std::size_t> durable;
    for (std::size_t i = 0; i < cut; ++i) {
      const RecordedEvent& event = recording[i];
      switch (event.kind) {
        case Kind::write_begun: writes_.push_back(i); break;
        case Kind::write_ended: ended.insert(event.operation); break;
        case Kind::flush_begun: flushes.emplace_back(event.operation, ended); break;
        case Kind::flush_ended:
          for (const auto& [operation, covered] : flushes) {
            if (operation != event.operation) continue;
            for (const std::size_t write : covered) {
              if (recording[write].file == event.file) durable.insert(write);
            }
          }
          break;
        case Kind::commit_reported: reported_ = event.step; break;
      }
    }
    for (const std::size_t write : writes_) {
      if (durable.contains(write)) {
        apply(recording[write], [] { return true; });
      } else {
        loose_.push_back(write);
      }
    }
  }

  /// Keeps, loses or tears each write that no flush covers, in any order.
  void settle(const Recording& recording, std::mt19937_64& random) {
    std::shuffle(loose_.begin(), loose_.end(), random);
    for (const std::size_t write : loose_) {
      const std::uint64_t fate = random() % 3;
      if (fate == 0) continue;
      apply(recording[write], [&] { return fate == 1 || random() % 2 == 0; });
    }
  }

  [[nodiscard]] const std::vector<Image>& images() const { return images_; }
  [[nodiscard]] std::uint64_t reported() const { return reported_; }

 private:
  template <class KeepSector>
  void apply(const RecordedEvent& write, KeepSector&& keep) {
    for (std::size_t i = 0; i < write.data.size(); i += kSectorBytes) {
      if (!keep()) continue;
      std::copy_n(write.data.begin() + static_cast<std::ptrdiff_t>(i), kSectorBytes,
                  images_[write.file].begin() + static_cast<std::ptrdiff_t>(write.offset + i));
    }
  }

  std::vector<Image> images_;
  std::vector<std::size_t> writes_;
  std::vector<std::size_t> loose_;
  std::uint64_t reported_ = 0;
};

class PowerCut : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  static constexpr std::uint64_t kSteps = 5;

  PowerCut() : options_(small_options(scratch_.path() / "run", 2)) {
    options_.slots = GetParam();
    options_.cache = CacheUse::always;
  }

  void record() {
    Recording discarded;
    Recording* target = &discarded;
    options_.adapt = [&target](std::unique_ptr<IoEngine> inner, const EngineOptions& engine) {
      return std::make_unique<RecordingEngine>(std::move(inner), engine, *target);
    };
    // Made first and opened again, so that the recording starts from durable files.
    static_cast<void>(TileStore::create(options_, {{12_KiB, 8_KiB, 4_KiB}}));
    for (std::size_t i = 0; i < 2; ++i) {
      fresh_.push_back(load(swap_file_path(options_.directories[i], options_.name, i)));
    }
    target = &recording_;
    const auto store = TileStore::open(options_);
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
      write_step(*store, step);
      Ticket commit = store->commit(header_of(step));
      // With a third slot the next step is written while the commit runs.
      if (options_.slots > 2) write_step(*store, step + 100);
      commit.wait();
      recording_.push_back({.kind = Kind::commit_reported, .step = step});
    }
    options_.adapt = nullptr;
  }

  /// Recovers from the images and checks that one committed step is there, whole.
  void check(const Disk& disk) {
    StoreOptions options = options_;
    for (std::size_t i = 0; i < 2; ++i) {
      options.directories[i] = scratch_.path() / ("cut" + std::to_string(i));
      std::filesystem::create_directories(options.directories[i]);
      const auto path = swap_file_path(options.directories[i], options.name, i);
      const Image& image = disk.images()[i];
      std::ofstream(path, std::ios::binary)
          .write(reinterpret_cast<const char*>(image.data()),
                 static_cast<std::streamsize>(image.size()));
      std::filesystem::permissions(path, std::filesystem::perms{0600});
    }
    const auto store = TileStore::open(options);
    const std::uint64_t step = store->committed() ? store->committed()->step.value() : 0;
    EXPECT_GE(step, disk.reported()) << "a committed step is gone";
    EXPECT_LE(step, disk.reported() + 1);
    if (step > 0) expect_step(*store, step);
  }

  const QuietLog quiet_;
  ScratchDirectory scratch_{Medium::memory};
  StoreOptions options_;
  std::vector<Image> fresh_;
  Recording recording_;
};

TEST_P(PowerCut, LeavesACommittedStepWhole) {
  constexpr int kSamplesPerCut = 5;
  std::mt19937_64 random(test_seed());
  record();
  ASSERT_GT(recording_.size(), 80U);
  for (std::size_t cut = 0; cut <= recording_.size(); ++cut) {
    for (int sample = 0; sample < kSamplesPerCut; ++sample) {
      Disk disk(fresh_, recording_, cut);
      if (sample > 0) disk.settle(recording_, random);
      ASSERT_NO_THROW(check(disk)) << "cut before event " << cut << " sample " << sample;
      ASSERT_FALSE(HasFailure()) << "cut before event " << cut << " sample " << sample;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Slots, PowerCut, ::testing::Values(2U, 3U));

}  // namespace
}  // namespace spillway::nvme_swap
