#include "tools/bench/nvme_tiles.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>

#include "runtime/base/elapsed.hpp"
#include "runtime/base/error.hpp"

namespace spillway::bench {
namespace {

using Clock = std::chrono::steady_clock;
using nvme_swap::AccessPattern;

constexpr std::size_t kHugePage = std::size_t{2} << 20;

double cpu_seconds(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Different for every tile and every write of it.
void mark(std::span<std::byte> tile, std::uint64_t index, std::uint64_t version) {
  const std::uint64_t words[] = {index, version};
  std::memcpy(tile.data(), words, sizeof words);
}

nvme_swap::StoreOptions store_options(const TileLoadOptions& options, TileBuffers& buffers,
                                      WakeSignal& wake) {
  nvme_swap::StoreOptions store;
  store.directories = options.directories;
  store.name = "bench";
  store.engine = options.engine;
  store.uring = options.uring;
  store.queue_depth = options.queue_depth;
  store.transfer_bytes = options.transfer_bytes;
  store.tickets = 2 * options.buffers + 4;
  store.wake = &wake;
  store.buffers = {buffers.all()};
  store.remove_on_close = true;
  return store;
}

nvme_swap::StoreLayout store_layout(const TileLoadOptions& options) {
  nvme_swap::StoreLayout layout{.tiles = std::vector<Bytes>(options.tiles, options.tile_bytes)};
  if (options.companion_bytes > Bytes{}) {
    layout.tiles.resize(2 * options.tiles, options.companion_bytes);
  }
  return layout;
}

}  // namespace

TileBuffers::TileBuffers(std::size_t count, Bytes bytes)
    : count_(count),
      bytes_(bytes.value()),
      data_(static_cast<std::byte*>(
          std::aligned_alloc(kHugePage, round_up(count * bytes.value(), kHugePage)))) {
  if (data_ == nullptr) throw std::bad_alloc();
  ::madvise(data_.get(), round_up(count_ * bytes_, kHugePage), MADV_HUGEPAGE);
  std::mt19937_64 random(count);
  for (std::size_t i = 0; i + 8 <= count_ * bytes_; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(data_.get() + i, &word, sizeof word);
  }
}

void TileBuffers::Free::operator()(std::byte* data) const { std::free(data); }

ScratchDirectories::~ScratchDirectories() {
  for (const std::filesystem::path& path : paths_) {
    std::error_code ignored;  // somebody else's files may be there
    std::filesystem::remove(path, ignored);
  }
}

TileLoad::TileLoad(const TileLoadOptions& options)
    : options_(options),
      directories_(options.directories),
      buffers_(options.buffers, options.tile_bytes),
      store_(nvme_swap::TileStore::create(store_options(options, buffers_, wake_),
                                          store_layout(options))) {
  // Both slots once: the first write into preallocated space costs the filesystem more.
  TileLoadResult ignored;
  for (int slot = 0; slot < 2; ++slot) {
    run_round(AccessPattern::write, ignored);
    write_companions();
    commit();
  }
}

void TileLoad::write_companions() {
  const std::size_t bytes = options_.companion_bytes.value();
  if (bytes == 0) return;
  const std::span<const std::byte> source = buffers_.all().first(bytes);
  for (std::size_t tile = 0; tile < options_.tiles; ++tile) {
    const TileIndex companion{static_cast<std::uint32_t>(options_.tiles + tile)};
    store_->write(companion, source, nvme_swap::checksum_of(source)).wait();
  }
}

void TileLoad::commit() { store_->commit({.step = StepIndex{++commits_}}).wait(); }

std::uint64_t TileLoad::checksum(std::span<const std::byte> data, TileLoadResult& result) const {
  const double begin = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
  const std::uint64_t value = nvme_swap::checksum_of(data);
  result.load.data_seconds += cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - begin;
  return value;
}

/// Where the buffers of one round are.
struct TileLoad::Round {
  enum class State { free, reading, writing };
  struct Buffer {
    State state = State::free;
    TileIndex tile{};
    Ticket ticket;
  };
  std::vector<Buffer> buffers;
  std::uint32_t next = 0;
  std::size_t over = 0;
};

void TileLoad::run_round(AccessPattern pattern, TileLoadResult& result) {
  Round round;
  round.buffers.resize(buffers_.size());
  const auto write = [&](Round::Buffer& buffer, std::span<std::byte> data) {
    mark(data, buffer.tile.value(), commits_ + 1);
    buffer.ticket = store_->write(buffer.tile, data, checksum(data, result));
    buffer.state = Round::State::writing;
  };
  while (round.over < options_.tiles) {
    bool progress = false;
    for (std::size_t i = 0; i < round.buffers.size(); ++i) {
      Round::Buffer& buffer = round.buffers[i];
      if (buffer.state != Round::State::free) {
        if (!buffer.ticket.ready()) continue;
        buffer.ticket.wait();
        const Bytes bytes = options_.tile_bytes;
        (buffer.state == Round::State::reading ? result.load.read : result.load.written) += bytes;
        progress = true;
        if (buffer.state == Round::State::reading) {
          const double begin = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
          store_->verify(buffer.tile, buffers_[i]);
          result.load.data_seconds += cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - begin;
        }
        if (buffer.state == Round::State::reading && pattern == AccessPattern::mixed) {
          write(buffer, buffers_[i]);
          continue;
        }
        buffer.state = Round::State::free;
        ++round.over;
      }
      if (round.next == options_.tiles) continue;
      buffer.tile = TileIndex{round.next++};
      progress = true;
      if (pattern == AccessPattern::write) {
        write(buffer, buffers_[i]);
      } else {
        buffer.ticket = store_->read(buffer.tile, buffers_[i]);
        buffer.state = Round::State::reading;
      }
    }
    if (!progress) wake_.wait_for(kDiskWait);
  }
}

TileLoadResult TileLoad::run(AccessPattern pattern, std::chrono::milliseconds duration) {
  TileLoadResult result;
  result.load.engine = store_->engine_name();
  result.load.abilities = store_->engine_abilities();
  int commits = 0;
  const Clock::time_point begin = Clock::now();
  do {
    const Clock::time_point round_begin = Clock::now();
    const double cpu_begin = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
    run_round(pattern, result);
    result.load.seconds += seconds_since(round_begin);
    result.load.cpu_seconds += cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_begin;
    if (pattern == AccessPattern::read) continue;
    const Clock::time_point commit_begin = Clock::now();
    commit();
    result.commit_seconds += seconds_since(commit_begin);
    ++commits;
  } while (Clock::now() - begin < duration);
  result.load.cpu_seconds -= result.load.data_seconds;
  if (commits > 0) result.commit_seconds /= commits;
  return result;
}

}  // namespace spillway::bench
