// Exporting: writes a run's last committed step as a checkpoint of Hugging Face, for the program
// and the Python package. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "runtime/base/dtype.hpp"
#include "runtime/base/units.hpp"
#include "runtime/model/hf/checkpoint.hpp"

namespace spillway::cli {

struct ExportRequest {
  std::filesystem::path run;
  std::filesystem::path out;
  std::optional<DType> dtype{};  ///< of the weights; absent: the run's compute type
  Bytes max_shard;               ///< no safetensors file is larger
  model::IfExists if_exists = model::IfExists::refuse;
};

struct Exported {
  std::uint64_t step = 0;
  std::uint64_t parameters = 0;
  DType dtype = DType::fp32;
};

/// Thrown where the caller wants an end; nothing is left of what was written.
struct ExportStopped {};

/// Needs memory for a tile. `stops` is asked before each tile. Throws `Error{invalid_argument}` if
/// `out` holds the run, or is there and not to be replaced.
Exported export_run(const ExportRequest& request, const std::function<bool()>& stops);

}  // namespace spillway::cli
