// What a disk may hold after the power went: every write that no flush covers kept, lost or torn,
// in any order. Works on what a RecordingEngine noted.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/nvme_swap/recording_engine.hpp"

namespace spillway::nvme_swap {

/// The bytes of one file.
using Image = std::vector<std::byte>;

inline Image load_image(const std::filesystem::path& path) {
  Image image(std::filesystem::file_size(path));
  std::ifstream(path, std::ios::binary)
      .read(reinterpret_cast<char*>(image.data()), static_cast<std::streamsize>(image.size()));
  return image;
}

inline void save_image(const Image& image, const std::filesystem::path& path) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(image.data()),
             static_cast<std::streamsize>(image.size()));
  std::filesystem::permissions(path, std::filesystem::perms{0600});
}

/// The disks after a cut before event `cut` of a recording that began from `fresh`.
class CutDisk {
 public:
  static constexpr std::size_t kSectorBytes = 512;

  CutDisk(const std::vector<Image>& fresh, const Recording& recording, std::size_t cut)
      : recording_(recording), images_(fresh) {
    using Kind = RecordedEvent::Kind;
    // A flush makes durable the writes to its file that had ended when it began.
    std::set<std::size_t> ended;
    std::vector<std::pair<std::size_t, std::set<std::size_t>>> flushes;  // operation, covered
    std::set<std::size_t> durable;
    std::vector<std::size_t> writes;
    for (std::size_t i = 0; i < cut; ++i) {
      const RecordedEvent& event = recording[i];
      switch (event.kind) {
        case Kind::write_begun: writes.push_back(i); break;
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
    for (const std::size_t write : writes) {
      if (durable.contains(write)) {
        apply(recording[write], [] { return true; });
      } else {
        loose_.push_back(write);
      }
    }
  }

  /// Every write that had begun reached the disk, in order.
  void keep_all() {
    for (const std::size_t write : loose_) apply(recording_[write], [] { return true; });
  }

  /// Keeps, loses or tears each write that no flush covers, in any order.
  void settle(std::mt19937_64& random) {
    std::shuffle(loose_.begin(), loose_.end(), random);
    for (const std::size_t write : loose_) {
      const std::uint64_t fate = random() % 3;
      if (fate == 0) continue;
      apply(recording_[write], [&] { return fate == 1 || random() % 2 == 0; });
    }
  }

  [[nodiscard]] const std::vector<Image>& images() const { return images_; }
  /// The last step whose commit was reported before the cut; 0 if none was.
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

  const Recording& recording_;
  std::vector<Image> images_;
  std::vector<std::size_t> loose_;
  std::uint64_t reported_ = 0;
};

}  // namespace spillway::nvme_swap
