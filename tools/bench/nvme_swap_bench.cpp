#include "tools/bench/nvme_swap_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <ctime>
#include <memory>
#include <optional>
#include <random>
#include <span>

#include "cpu_adam/adam.hpp"
#include "cpu_adam/worker_pool.hpp"
#include "nvme_swap/format.hpp"
#include "runtime/base/dtype.hpp"
#include "runtime/base/elapsed.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/step/tile_update.hpp"
#include "tools/bench/huge_array.hpp"
#include "tools/bench/median.hpp"
#include "tools/bench/nvme_tiles.hpp"

namespace spillway::bench {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;

double process_cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Buffer {
  enum class State { free, reading, updating, writing };
  State state = State::free;
  TileIndex tile{};
  Ticket ticket;
  Ticket parameters;  // the write of the tile's 16-bit parameters, if they are part of a slot
};

/// Belong to what lies on the drive, or is about to.
struct Checksums {
  std::uint64_t state = 0;
  std::uint64_t parameters = 0;
};

class SwapBench {
 public:
  SwapBench(const SwapBenchOptions& options, const SwapBenchNote& note)
      : options_(options),
        note_(note),
        tile_(round_up(options.tile_parameters, kLeafParameters)),
        tiles_((options.parameters + tile_ - 1) / tile_),
        isa_(options.isa.empty() ? cpu_adam::best_isa() : cpu_adam::parse_isa(options.isa)),
        kernel_(cpu_adam::find_kernel(isa_, DType::bf16, DType::bf16, options.format)),
        layout_(cpu_adam::make_layout(options.format, tile_)),
        with_parameters_(cpu_adam::needs_parameters(options.format)),
        scalars_(cpu_adam::make_scalars({.weight_decay = 0.01}, 1, 1.0)),
        gradients_(tile_),
        parameters_(tiles_ * tile_ * sizeof(std::uint16_t)),
        load_({.directories = options.directories,
               .engine = nvme_swap::parse_engine(options.engine),
               .queue_depth = options.queue_depth,
               .transfer_bytes = options.transfer_bytes,
               .tile_bytes = Bytes{layout_.bytes},
               .tiles = tiles_,
               .companion_bytes = Bytes{with_parameters_ ? parameter_bytes() : 0},
               .buffers = options.buffers}),
        pool_({.threads = options.threads, .wake = &load_.wake()}),
        tile_update_(pool_, Bytes{layout_.bytes}),
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
    std::vector<double> checksum_cpu;
    std::vector<double> steps;
    for (int round = 0; round < options_.rounds; ++round) {
      io.push_back(io_seconds());
      const Spent alone = spent([this](auto state, std::size_t tile) { update_tile(state, tile); });
      const Spent summed =
          spent([this](auto state, std::size_t tile) { sum_and_update_tile(state, tile); });
      update.push_back(alone.seconds);
      checksum.push_back(summed.seconds - alone.seconds);
      checksum_cpu.push_back(summed.cpu_seconds - alone.cpu_seconds);
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
    auto result = document(median_of(io), median_of(update), median_of(steps));
    result["rounds"] = steps.size();
    // What checksums add to the cpu lane of a step: one of what is read, one of what is written.
    result["checksum_seconds"] = median_of(checksum);
    result["checksum_cpu_seconds"] = median_of(checksum_cpu);
    return result;
  }

 private:
  [[nodiscard]] std::size_t parameter_bytes() const { return tile_ * sizeof(std::uint16_t); }
  [[nodiscard]] std::span<std::byte> parameters_of(std::size_t tile) const {
    return {parameters_.data() + tile * parameter_bytes(), parameter_bytes()};
  }
  [[nodiscard]] TileIndex companion_of(std::size_t tile) const {
    return TileIndex{static_cast<std::uint32_t>(tiles_ + tile)};
  }

  [[nodiscard]] cpu_adam::UpdateRange range_of(std::byte* state, std::byte* parameters) const {
    return cpu_adam::tile_range(layout_, state, state, gradients_.data(), parameters, parameters);
  }

  void update_tile(std::span<std::byte> state, std::size_t tile) {
    const cpu_adam::UpdateRange whole = range_of(state.data(), parameters_of(tile).data());
    pool_.parallel_for(tile_, kLeafParameters, [&](std::size_t first, std::size_t last) {
      kernel_.update(scalars_, cpu_adam::slice(kernel_, whole, first, last - first));
    });
  }

  /// As a run updates a tile from the disk.
  engine::TileChecksums sum_and_update_tile(std::span<std::byte> state, std::size_t tile) {
    const std::array groups{cpu_adam::ParameterGroup{.end = tile_, .scalars = scalars_}};
    const std::span<const std::byte> parameters = parameters_of(tile);
    return tile_update_.run({.kernel = kernel_,
                             .groups = groups,
                             .range = range_of(state.data(), parameters_of(tile).data()),
                             .layout = layout_,
                             .state = state,
                             .parameters = with_parameters_ ? parameters : parameters.first(0)});
  }

  void make_checksums(std::span<const std::byte> state, std::size_t tile) {
    checksums_[tile].state = nvme_swap::checksum_of(state);
    if (with_parameters_) checksums_[tile].parameters = nvme_swap::checksum_of(parameters_of(tile));
  }

  /// A first state that an update of any length keeps ordinary, different for every tile.
  void fill(std::span<std::byte> state, std::span<std::byte> parameters, std::size_t tile) {
    masters_.resize(tile_);
    for (std::size_t i = 0; i < tile_; ++i) {
      masters_[i] = static_cast<float>((i * 2654435761U + tile) % 2001) / 1000.0F - 1.0F;
    }
    cpu_adam::pack_state(layout_, {.master = masters_, .m = {}, .v = {}}, state.data(),
                         parameters.data());
  }

  /// Starts the write of a slot.
  void write(Buffer& buffer, std::span<const std::byte> state) {
    const std::size_t tile = buffer.tile.value();
    nvme_swap::TileStore& store = load_.store();
    buffer.ticket = store.write(buffer.tile, state, checksums_[tile].state);
    buffer.state = Buffer::State::writing;
    if (!with_parameters_) return;
    buffer.parameters =
        store.write(companion_of(tile), parameters_of(tile), checksums_[tile].parameters);
  }

  void initialize() {
    for (std::uint32_t tile = 0; tile < tiles_; ++tile) {
      const auto state = load_.buffers()[0];
      Buffer buffer;
      buffer.tile = TileIndex{tile};
      fill(state, parameters_of(tile), tile);
      make_checksums(state, tile);
      write(buffer, state);
      buffer.ticket.wait();
      buffer.parameters.wait();
    }
    load_.commit();
  }

  /// Drive alone: every tile read and written back, with its commit.
  double io_seconds() { return pass(/*with_update=*/false); }

  /// Drive and update together.
  double step_seconds() {
    ++updates_;
    return pass(/*with_update=*/true);
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
      if (!progress) load_.wake().wait_for(kDiskWait);
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
      const bool over_both = buffer.ticket.ready() && buffer.parameters.ready();
      if (!over_both) return false;
      buffer.ticket.wait();
      buffer.parameters.wait();
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
          write(buffer, state);  // the drive alone: the checksums that the tile has already
          return true;
        }
        buffer.ticket = pool_.submit([this, &store, &buffer, state] {
          const engine::TileChecksums sums = sum_and_update_tile(state, buffer.tile.value());
          store.verify(buffer.tile, sums.before);
          checksums_[buffer.tile.value()] = {.state = sums.state, .parameters = sums.parameters};
        });
        buffer.state = Buffer::State::updating;
        return true;
      case Buffer::State::updating: write(buffer, state); return true;
      case Buffer::State::writing:
        buffer.state = Buffer::State::free;
        ++over;
        return true;
    }
    return false;
  }

  struct Spent {
    double seconds;
    double cpu_seconds;
  };

  /// The update alone, or with its checksums: as many parameters, out of the buffers in memory.
  template <class Update>
  Spent spent(const Update& update) {
    // Masters and parameters of different tiles make ordinary numbers too.
    std::vector<std::byte> parameters(parameter_bytes());
    for (std::size_t i = 0; i < buffers_.size(); ++i) fill(load_.buffers()[i], parameters, i);
    saved_.assign(parameters_.data(), parameters_.data() + tiles_ * parameter_bytes());
    const Clock::time_point begin = Clock::now();
    const double cpu_begin = process_cpu_seconds();
    for (std::size_t tile = 0; tile < tiles_; ++tile) {
      const std::span<std::byte> state = load_.buffers()[tile % buffers_.size()];
      pool_.submit([&update, state, tile] { update(state, tile); }).wait();
    }
    const Spent result{.seconds = seconds_since(begin),
                       .cpu_seconds = process_cpu_seconds() - cpu_begin};
    std::ranges::copy(saved_, parameters_.data());  // what the states on the drive belong to
    return result;
  }

  void verify_first_tile() {
    const std::span<std::byte> expected = load_.buffers()[0];
    const std::span<std::byte> actual = load_.buffers()[1];
    std::vector<std::byte> parameters(parameter_bytes());
    fill(expected, parameters, 0);
    for (int i = 0; i < updates_; ++i) {
      kernel_.update(scalars_, range_of(expected.data(), parameters.data()));
    }
    load_.store().read(TileIndex{0}, actual).wait();
    load_.store().verify(TileIndex{0}, actual);
    check(std::ranges::equal(expected, actual) && std::ranges::equal(parameters, parameters_of(0)),
          ErrorCode::corrupt_data,
          "the first tile on the drive is not what its updates make of its first state");
  }

  ordered_json document(double io, double update, double step) const {
    const double parameters = static_cast<double>(tiles_ * tile_);
    const double read =
        parameters * static_cast<double>(layout_.bytes) / static_cast<double>(tile_);
    const double written =
        parameters * static_cast<double>(layout_.disk_bytes) / static_cast<double>(tile_);
    const double limit = std::max(io, update);
    return {{"benchmark", "swap"},
            {"state_format", name_of(options_.format)},
            {"parameters", tiles_ * tile_},
            {"tiles", tiles_},
            {"engine", engine_name_},
            {"kernel", kernel_.name},
            {"threads", pool_.threads()},
            {"io_seconds", io},
            {"update_seconds", update},
            {"pipeline_seconds", step},
            {"io_gigabytes_per_second", (read + written) / 1e9 / io},
            {"ratio_to_limit", step / limit},
            {"fraction_of_limit", limit / step},
            {"limit", io >= update ? "drive" : "update"},
            {"verified", true},
            {"wear",
             {{"bytes_written_a_step", static_cast<std::uint64_t>(written)},
              {"terabytes_written_a_day", written / step * kSecondsPerDay / 1e12}}}};
  }

  const SwapBenchOptions options_;
  const SwapBenchNote& note_;
  const std::size_t tile_;
  const std::size_t tiles_;
  const cpu_adam::Isa isa_;
  const cpu_adam::Kernel& kernel_;
  const cpu_adam::StateLayout layout_;
  const bool with_parameters_;
  const cpu_adam::UpdateScalars scalars_;
  std::vector<std::uint16_t> gradients_;  // of one tile, the same for all
  HugeArray parameters_;                  // of the whole model, as a step writes them
  std::vector<std::byte> saved_;          // of the parameters, while they are used otherwise
  std::vector<float> masters_;            // of one tile, being filled
  TileLoad load_;
  cpu_adam::WorkerPool pool_;
  engine::TileUpdate tile_update_;
  std::vector<Buffer> buffers_;
  std::vector<Checksums> checksums_ = std::vector<Checksums>(tiles_);
  std::string_view engine_name_ = load_.store().engine_name();
  bool ascending_ = true;
  int updates_ = 0;
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
