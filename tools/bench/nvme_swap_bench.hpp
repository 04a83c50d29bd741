// `spillway bench swap`: the state of a model goes from the drive through the update and back, and
// is compared with the drive alone and the update alone, measured in the same run.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nvme_swap/io_engine.hpp"
#include "runtime/base/state_format.hpp"
#include "runtime/base/units.hpp"

namespace spillway::bench {

struct SwapBenchOptions {
  std::vector<std::filesystem::path> directories{"."};
  std::size_t parameters = 200'000'000;  ///< rounded up to whole tiles
  std::size_t tile_parameters = std::size_t{2} << 20;
  StateFormat format = StateFormat::fp32;
  std::string engine = "auto";
  std::string isa;          ///< the best if empty
  std::size_t threads = 0;  ///< 0: one a core
  std::size_t queue_depth = 32;
  Bytes transfer_bytes{4 << 20};
  std::size_t buffers = 8;    ///< tiles in memory at once
  int rounds = 3;             ///< medians are taken over these
  double seconds_limit = 35;  ///< fewer rounds rather than longer
};

using SwapBenchNote = std::function<void(const std::string& line)>;

/// Reads and writes what the state format keeps of a parameter, 12 bytes each way in `fp32`, 10 and
/// 12 in `split`. Recomputes one tile from its first state and throws `Error{corrupt_data}` if the
/// drive's copy differs in a bit.
[[nodiscard]] nlohmann::ordered_json bench_swap(const SwapBenchOptions& options,
                                                const SwapBenchNote& note);

}  // namespace spillway::bench
