#include "tools/bench/nvme_swap_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <span>

#include "cpu_adam/adam.hpp"
#include "cpu_adam/worker_pool.hpp"
#include "nvme_swap/format.hpp"
#include "runtime/base/dtype.hpp"
#include "runtime/base/error.hpp"
#include "tools/bench/nvme_tiles.hpp"

namespace spillway::bench {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;

constexpr std::size_t kBytesPerParameter = 12;
constexpr double kSecondsPerDay = 86400;
constexpr std::chrono::milliseconds kWait{1000};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Buffer {
  enum class State { free, reading, updating, writing };
  State state = State::free;
  TileIndex tile{};
  std::uint64_t checksum = 0;  // of what the update wrote
  Ticket ticket;
};

class SwapBench {
 public:
  SwapBench(const SwapBenchOptions& options, const SwapBenchNote& note)
      : options_(options),
        note_(note),
        tile_(round_up(options.tile_parameters, kLeafParameters)),
        tiles_((options.parameters + tile_ - 1) / tile_),
        isa_(options.isa.empty() ? cpu_adam::best_isa() : cpu_adam::parse_isa(options.isa)),
        kernel_(cpu_adam::find_kernel(isa_, DType::bf16, DType::bf16)),
        scalars_(cpu_adam::make_scalars({.weight_decay = 0.01}, 1, 1.0)),
        gradients_(tile_),
        parameters_(tiles_ * tile_),
        load_({.directories = options.directories,
               .engine = nvme_swap::parse_engine(options.engine),
               .queue_depth = options.queue_depth,
               .transfer_bytes = options.transfer_bytes,
               .tile_bytes = Bytes{tile_ * kBytesPerParameter},
               .tiles = tiles_,
               .buffers = options.buffers}),
        pool_({.threads = options.threads, .wake = &load_.wake()}),
        buffers_(options.buffers) {
    std::mt19937_64 random(7);
    for (std::uint16_t& gradient : gradients_) {
      // 1/8 to 2 in size, either sign.
      gradient = static_cast<std::uint16_t>((random() & 0x83ff) | 0x3e00);
    }
    initialize();
  }

  ordered_json run() {
    const Clock::time_point begin = Clock::now();
    std::vector<double> io;
    std::vector<double> update;
    std::vector<double> checksum;
    std::vector<double> steps;
    for (int round = 0; round < options_.rounds; ++round) {
      io.push_back(io_seconds());
      update.push_back(update_seconds());
      checksum.push_back(checksum_seconds());
      steps.push_back(step_seconds());
      if (note_) {
        note_(
            fmt::format("round {}: I/O {:.3f} s, update {:.3f} s, checksums {:.3f} s, pipeline "
                        "{:.3f} s",
                        round + 1, io.back(), update.back(), checksum.back(), steps.back()));
      }
      const double each = seconds_since(begin) / (round + 1);
      if (seconds_since(begin) + each > options_.seconds_limit) break;
    }
    verify_first_tile();
    return document(median(io), median(update), median(checksum), median(steps),
                    static_cast<int>(steps.size()));
  }

 private:
  [[nodiscard]] cpu_adam::UpdateRange range_of(std::byte* state, std::size_t tile,
                                               std::size_t first, std::size_t last) {
    auto* master = reinterpret_cast<float*>(state) + first;
    return {.gradient = gradients_.data() + first,
            .master_in = master,
            .m_in = master + tile_,
            .v_in = master + 2 * tile_,
            .master_out = master,
            .m_out = master + tile_,
            .v_out = master + 2 * tile_,
            .parameters_out = parameters_.data() + tile * tile_ + first,
            .count = last - first};
  }

  void update_tile(std::span<std::byte> state, std::size_t tile) {
    pool_.parallel_for(tile_, kLeafParameters, [&](std::size_t first, std::size_t last) {
      kernel_.update(scalars_, range_of(state.data(), tile, first, last));
    });
  }

  /// A first state that an update of any length keeps ordinary, different for every tile.
  void fill(std::span<std::byte> state, std::size_t tile) const {
    auto* values = reinterpret_cast<float*>(state.data());
    for (std::size_t i = 0; i < tile_; ++i) {
      values[i] = static_cast<float>((i * 2654435761U + tile) % 2001) / 1000.0F - 1.0F;
      values[tile_ + i] = 0;
      values[2 * tile_ + i] = 0;
    }
  }

  void initialize() {
    for (std::uint32_t tile = 0; tile < tiles_; ++tile) {
      const auto state = load_.buffers()[0];
      fill(state, tile);
      checksums_[tile] = nvme_swap::checksum_of(state);
      load_.store().write(TileIndex{tile}, state, checksums_[tile]).wait();
    }
    load_.commit();
  }

  /// Drive alone: every tile read and written back, with its commit.
  double io_seconds() { return pass(false); }

  /// Drive and update together.
  double step_seconds() {
    ++updates_;
    return pass(true);
  }

  /// Tiles ascend in one pass and descend in the next, as steps do.
  double pass(bool with_update) {
    const Clock::time_point begin = Clock::now();
    std::size_t next = 0;
    std::size_t over = 0;
    while (over < tiles_) {
      bool progress = false;
      for (std::size_t i = 0; i < buffers_.size(); ++i) {
        while (advance(i, with_update, next, over)) progress = true;
      }
      if (!progress) load_.wake().wait_for(kWait);
    }
    load_.commit();
    ascending_ = !ascending_;
    return seconds_since(begin);
  }

  /// Takes a buffer one state further, if it can go.
  bool advance(std::size_t index, bool with_update, std::size_t& next, std::size_t& over) {
    Buffer& buffer = buffers_[index];
    const std::span<std::byte> state = load_.buffers()[index];
    nvme_swap::TileStore& store = load_.store();
    if (buffer.state != Buffer::State::free) {
      if (!buffer.ticket.ready()) return false;
      buffer.ticket.wait();
    }
    switch (buffer.state) {
      case Buffer::State::free:
        if (next == tiles_) return false;
        buffer.tile = TileIndex{static_cast<std::uint32_t>(ascending_ ? next : tiles_ - 1 - next)};
        ++next;
        buffer.ticket = store.read(buffer.tile, state);
        buffer.state = Buffer::State::reading;
        return true;
      case Buffer::State::reading:
        if (!with_update) {
          // The drive alone: the checksum that the tile has already.
          buffer.ticket = store.write(buffer.tile, state, checksums_[buffer.tile.value()]);
          buffer.state = Buffer::State::writing;
          return true;
        }
        buffer.ticket = pool_.submit([this, &store, &buffer, state] {
          store.verify(buffer.tile, state);
          update_tile(state, buffer.tile.value());
          buffer.checksum = nvme_swap::checksum_of(state);
        });
        buffer.state = Buffer::State::updating;
        return true;
      case Buffer::State::updating:
        checksums_[buffer.tile.value()] = buffer.checksum;
        buffer.ticket = store.write(buffer.tile, state, buffer.checksum);
        buffer.state = Buffer::State::writing;
        return true;
      case Buffer::State::writing:
        buffer.state = Buffer::State::free;
        ++over;
        return true;
    }
    return false;
  }

  /// The update alone: as many parameters, out of the buffers in memory.
  double update_seconds() {
    for (std::size_t i = 0; i < buffers_.size(); ++i) fill(load_.buffers()[i], i);
    const Clock::time_point begin = Clock::now();
    for (std::size_t tile = 0; tile < tiles_; ++tile) {
      const std::span<std::byte> state = load_.buffers()[tile % buffers_.size()];
      pool_.submit([this, state, tile] { update_tile(state, tile); }).wait();
    }
    return seconds_since(begin);
  }

  /// What checksums add to the cpu lane of a step: one of what is read, one of what is written.
  double checksum_seconds() {
    const Clock::time_point begin = Clock::now();
    std::uint64_t sum = 0;
    for (std::size_t tile = 0; tile < 2 * tiles_; ++tile) {
      sum ^= nvme_swap::checksum_of(load_.buffers()[tile % buffers_.size()]);
    }
    checksum_sink_ = sum;
    return seconds_since(begin);
  }

  void verify_first_tile() {
    const std::span<std::byte> expected = load_.buffers()[0];
    const std::span<std::byte> actual = load_.buffers()[1];
    fill(expected, 0);
    for (int i = 0; i < updates_; ++i) {
      kernel_.update(scalars_, range_of(expected.data(), 0, 0, tile_));
    }
    load_.store().read(TileIndex{0}, actual).wait();
    load_.store().verify(TileIndex{0}, actual);
    check(std::memcmp(expected.data(), actual.data(), actual.size()) == 0, ErrorCode::corrupt_data,
          "the first tile on the drive is not what its updates make of its first state");
  }

  ordered_json document(double io, double update, double checksum, double step, int rounds) const {
    const double parameters = static_cast<double>(tiles_ * tile_);
    const double bytes = parameters * kBytesPerParameter;
    const double limit = std::max(io, update);
    return {{"benchmark", "swap"},
            {"state_format", "fp32"},
            {"parameters", tiles_ * tile_},
            {"tiles", tiles_},
            {"engine", engine_name_},
            {"kernel", kernel_.name},
            {"threads", pool_.threads()},
            {"rounds", rounds},
            {"io_seconds", io},
            {"update_seconds", update},
            {"checksum_seconds", checksum},
            {"pipeline_seconds", step},
            {"io_gigabytes_per_second", 2 * bytes / 1e9 / io},
            {"ratio_to_limit", step / limit},
            {"fraction_of_limit", limit / step},
            {"limit", io >= update ? "drive" : "update"},
            {"verified", true},
            {"wear",
             {{"bytes_written_a_step", static_cast<std::uint64_t>(bytes)},
              {"terabytes_written_a_day", bytes / step * kSecondsPerDay / 1e12}}}};
  }

  const SwapBenchOptions options_;
  const SwapBenchNote& note_;
  const std::size_t tile_;
  const std::size_t tiles_;
  const cpu_adam::Isa isa_;
  const cpu_adam::Kernel& kernel_;
  const cpu_adam::UpdateScalars scalars_;
  std::vector<std::uint16_t> gradients_;   // of one tile, the same for all
  std::vector<std::uint16_t> parameters_;  // of the whole model, as a step writes them
  TileLoad load_;
  cpu_adam::WorkerPool pool_;
  std::vector<Buffer> buffers_;
  std::vector<std::uint64_t> checksums_ = std::vector<std::uint64_t>(tiles_);
  std::string_view engine_name_ = load_.store().engine_name();
  bool ascending_ = true;
  int updates_ = 0;
  std::uint64_t checksum_sink_ = 0;
};

}  // namespace

ordered_json bench_swap(const SwapBenchOptions& options, const SwapBenchNote& note) {
  check(options.buffers >= 2 && options.tile_parameters > 0 &&
            options.parameters > options.tile_parameters,
        ErrorCode::invalid_argument,
        fmt::format("the pipeline needs at least two tiles and two buffers, not {} parameters in "
                    "tiles of {} and {} buffers",
                    options.parameters, options.tile_parameters, options.buffers));
  return std::make_unique<SwapBench>(options, note)->run();
}

}  // namespace spillway::bench
