// The shapes of well known models, by name: what a benchmark needs of them without their weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/model_config.hpp"

namespace spillway::bench {

/// Returns all names, in the order of the table.
[[nodiscard]] std::vector<std::string_view> model_names();
/// Throws `Error{invalid_argument}` that lists the names if there is none such.
[[nodiscard]] model::ModelConfig model_named(std::string_view name);

/// Takes a name of the table or the path of an HF config.json; a file goes first.
[[nodiscard]] model::ModelConfig model_from(const std::filesystem::path& name_or_path);

}  // namespace spillway::bench
