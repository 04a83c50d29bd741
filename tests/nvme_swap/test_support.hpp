// What the tests of nvme_swap share: scratch directories, page-aligned buffers, tile contents.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "nvme_swap/failing_engine.hpp"
#include "nvme_swap/format.hpp"
#include "nvme_swap/tile_store.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"
#include "tests/support/environment.hpp"

namespace spillway::nvme_swap {

/// Where a scratch directory lies: on a real disk, or in memory where flushes cost nothing, for
/// tests of logic that make many small stores.
enum class Medium { disk, memory };

/// A directory of its own that goes with the object. `SPILLWAY_TEST_DIR` chooses the filesystem.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(Medium medium = Medium::disk) {
    std::filesystem::path base = std::filesystem::temp_directory_path();
    if (medium == Medium::memory && ::access("/dev/shm", W_OK) == 0) base = "/dev/shm";
    if (const char* chosen = std::getenv("SPILLWAY_TEST_DIR")) base = chosen;
    std::string pattern = base / "spillway-nvme-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) throw_errno(errno, "mkdtemp " + pattern);
    path_ = pattern;
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

class PageBuffer {
 public:
  explicit PageBuffer(std::size_t bytes)
      : data_(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes))), bytes_(bytes) {
    std::memset(data_.get(), 0xee, bytes);
  }
  [[nodiscard]] std::span<std::byte> bytes() { return {data_.get(), bytes_}; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t bytes_;
};

/// Content that depends on every argument: what `tile` holds at `step`.
inline void fill_tile(std::span<std::byte> target, std::uint64_t tile, std::uint64_t step) {
  std::uint64_t word = (tile + 1) * 0x9e3779b97f4a7c15U ^ (step + 1) * 0xbf58476d1ce4e5b9U;
  for (std::size_t i = 0; i < target.size(); i += sizeof word) {
    word = word * 6364136223846793005U + 1442695040888963407U;
    std::memcpy(target.data() + i, &word, sizeof word);
  }
}

inline PageBuffer tile_content(Bytes bytes, std::uint64_t tile, std::uint64_t step) {
  PageBuffer buffer(bytes.value());
  fill_tile(buffer.bytes(), tile, step);
  return buffer;
}

inline bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

/// The code of the `Error` that `call` throws; fails the test if it throws none.
template <class Call>
ErrorCode code_of(Call&& call) {
  try {
    static_cast<void>(call());
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "no Error was thrown";
  return ErrorCode::internal;
}

/// The message of the `Error` that `call` throws; empty if it throws none.
template <class Call>
std::string message_of(Call&& call) {
  try {
    static_cast<void>(call());
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

using test_support::count_from;
using test_support::test_seed;

inline std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

/// No log lines while a test provokes what they report.
class QuietLog {
 public:
  QuietLog() { set_log_level(LogLevel::off); }
  ~QuietLog() { set_log_level(LogLevel::warning); }
  QuietLog(const QuietLog&) = delete;
  QuietLog& operator=(const QuietLog&) = delete;
};

/// Options of a small store over `count` directories below `root`.
inline StoreOptions small_options(const std::filesystem::path& root, std::size_t count = 1) {
  StoreOptions options;
  for (std::size_t i = 0; i < count; ++i) {
    options.directories.push_back(root / ("disk" + std::to_string(i)));
  }
  options.engine = EngineKind::posix;
  options.queue_depth = 4;
  options.transfer_bytes = 8_KiB;
  options.tickets = 16;
  options.lock_patience = std::chrono::milliseconds{2000};
  return options;
}

inline StoreLayout layout_of(std::size_t tiles, Bytes bytes) { return {std::vector(tiles, bytes)}; }

inline std::string name_of(EngineKind engine) {
  switch (engine) {
    case EngineKind::automatic: return "auto";
    case EngineKind::uring: return "uring";
    case EngineKind::aio: return "aio";
    case EngineKind::posix: return "posix";
  }
  return "unknown";
}

inline constexpr EngineKind kEngines[] = {EngineKind::posix, EngineKind::uring, EngineKind::aio};

/// Writes the content of `step` to every tile and waits.
inline void write_step(TileStore& store, std::uint64_t step) {
  std::vector<PageBuffer> contents;
  std::vector<Ticket> tickets;
  const auto& tiles = store.layout().tiles;
  contents.reserve(tiles.size());
  for (std::uint32_t tile = 0; tile < tiles.size(); ++tile) {
    contents.push_back(tile_content(tiles[tile], tile, step));
    const auto bytes = std::as_const(contents.back()).bytes();
    tickets.push_back(store.write(TileIndex{tile}, bytes, checksum_of(bytes)));
  }
  for (Ticket& ticket : tickets) ticket.wait();
}

inline CommitHeader header_of(std::uint64_t step) {
  CommitHeader header{.step = StepIndex{step}};
  header.payload.assign(step % 100, static_cast<std::byte>(step));
  return header;
}

inline void commit_step(TileStore& store, std::uint64_t step) {
  store.commit(header_of(step)).wait();
}

/// Reads and verifies a tile, and checks that it holds exactly what `step` wrote.
inline void expect_tile(TileStore& store, std::uint32_t tile, std::uint64_t step) {
  const Bytes bytes = store.layout().tiles.at(tile);
  PageBuffer target(bytes.value());
  store.read(TileIndex{tile}, target.bytes()).wait();
  ASSERT_NO_THROW(store.verify(TileIndex{tile}, target.bytes()));
  EXPECT_TRUE(same_bytes(target.bytes(), tile_content(bytes, tile, step).bytes()))
      << "tile " << tile << " does not hold step " << step;
}

inline void expect_step(TileStore& store, std::uint64_t step) {
  for (std::uint32_t tile = 0; tile < store.layout().tiles.size(); ++tile) {
    expect_tile(store, tile, step);
  }
}

/// Puts a FailingEngine around the engine of a store made with `options`, and keeps hold of it.
inline void make_failing(StoreOptions& options, FailingEngine*& engine) {
  options.adapt = [&engine](std::unique_ptr<IoEngine> inner, const EngineOptions& engine_options) {
    auto made = std::make_unique<FailingEngine>(std::move(inner), engine_options);
    engine = made.get();
    return made;
  };
}

}  // namespace spillway::nvme_swap
