// The files of a Hugging Face checkpoint's weights: one of safetensors, or shards and their index.
// Any thread.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "runtime/model/hf/safetensors.hpp"

namespace spillway::model {

/// Opens the files with weights of a checkpoint: `model.safetensors` of a directory, the shards of
/// its `model.safetensors.index.json`, or the one file that `path` is. Throws
/// `Error{invalid_argument}` where there are none, or both, and `Error{corrupt_data}` for a tensor
/// that is not where the index says.
[[nodiscard]] std::vector<std::unique_ptr<SafetensorsFile>> open_checkpoint_files(
    const std::filesystem::path& path);

}  // namespace spillway::model
