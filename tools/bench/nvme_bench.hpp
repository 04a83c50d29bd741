// `spillway bench nvme`: what each engine gets out of a drive, by pattern, depth and block size.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nvme_swap/io_engine.hpp"
#include "runtime/base/units.hpp"

namespace spillway::bench {

struct NvmeBenchOptions {
  std::filesystem::path directory = ".";
  Bytes size{1 << 30};  ///< of the scratch file; a tile store of that size follows it
  std::vector<std::string> engines{"uring", "aio", "posix"};
  std::vector<std::size_t> depths{4, 8, 16};
  std::vector<Bytes> blocks{Bytes{1 << 20}, Bytes{4 << 20}};
  std::chrono::milliseconds point{150};  ///< spent on each
  bool compare_fio = false;
  int rounds = 3;  ///< of the comparison, engine and fio in turns
  nvme_swap::UringOptions uring{};
};

/// Called with each finished point, for a table that grows while the benchmark runs.
using NvmeBenchRow = std::function<void(const nlohmann::ordered_json& row)>;

/// Every byte read is checked, and all of the file at the end of each engine's turn. Throws for the
/// first wrong one.
[[nodiscard]] nlohmann::ordered_json bench_nvme(const NvmeBenchOptions& options,
                                                const NvmeBenchRow& row);

}  // namespace spillway::bench
