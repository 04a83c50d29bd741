// What parameters.json of a checkpoint says. It is written and read without nlohmann's documents,
// which end the process where there is no memory to free them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace spillway::engine {

/// Everything that the bytes of a checkpoint's state follow from.
struct CheckpointDescription {
  struct Parameter {
    std::string name;
    std::uint64_t elements = 0;
    std::uint64_t group = 0;
    /// Its block and its first element there; files lack both that are older than these keys.
    std::optional<std::uint64_t> block{}, first{};
    bool operator==(const Parameter&) const = default;
  };

  std::string dtype;
  std::string state_format;
  std::uint64_t tile_parameters = 0;
  std::vector<std::string> optimizers;  ///< of each group
  std::vector<Parameter> parameters;
  /// Number of updates of each parameter; empty: the state has one number for all.
  std::vector<std::uint64_t> updates;
};

/// Returns the parameter as JSON on one line.
[[nodiscard]] std::string to_text(const CheckpointDescription::Parameter& parameter);
/// Returns the sealed text of a file at `path`. Throws `Error{invalid_argument}` for more than can
/// be read again.
[[nodiscard]] std::string to_text(const std::filesystem::path& path,
                                  const CheckpointDescription& description);
/// Reads the file at `path`. Throws as `read_sealed_text`, and `Error{corrupt_data}` for a text
/// that is no description.
[[nodiscard]] CheckpointDescription read_description(const std::filesystem::path& path);

}  // namespace spillway::engine
