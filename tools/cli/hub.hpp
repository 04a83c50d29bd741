// Names of the Hugging Face hub where a directory is expected: looked up in the local cache, never
// on the network.
#pragma once

#include <filesystem>

namespace spillway::cli {

/// Returns `name` itself where something has that path. Else, for what looks like a model of the
/// hub ("meta-llama/Llama-3.1-8B", with "@REVISION" if wanted), the snapshot of it in the local
/// cache. Throws `Error{invalid_argument}` that says how to download it when it is not there, or
/// not whole.
[[nodiscard]] std::filesystem::path find_checkpoint(const std::filesystem::path& name);

}  // namespace spillway::cli
