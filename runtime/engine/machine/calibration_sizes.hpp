// How much memory and disk calibration takes: what it wants, made smaller until it fits what the
// run was given and what the drives have free. Pure functions, any thread.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "cpu_adam/adam.hpp"
#include "runtime/base/units.hpp"

namespace spillway::engine {

/// Returns the memory of an update over `count` parameters: state, gradients and 16-bit parameters.
[[nodiscard]] Bytes update_bytes(const cpu_adam::Kernel& kernel, ElementCount count);

/// Number of parameters that an update is timed with: those of a tile, or more of the model's, up
/// to 256 MiB. A tile may stay in a cache from one pass to the next, and the state of a model does
/// not.
[[nodiscard]] ElementCount timed_parameters(const cpu_adam::Kernel& kernel, ElementCount tile,
                                            ElementCount model);

/// Returns the parameters over which an update is measured: `wanted`, or fewer whole leaves where
/// those do not fit `room`. Throws `Error{does_not_fit}` if not even `least` do.
[[nodiscard]] ElementCount update_parameters(const cpu_adam::Kernel& kernel, ElementCount wanted,
                                             ElementCount least, Bytes room);

/// Returns the bytes of a copy over the link, of which two lie in `device` and two in `host`
/// memory: `wanted`, or whole pages that fit. Throws `Error{does_not_fit}` if not even a page does.
[[nodiscard]] Bytes link_bytes(Bytes wanted, Bytes device, Bytes host);

/// A directory, and what its drive has free.
struct DriveSpace {
  std::filesystem::path directory;
  Bytes free;
};

[[nodiscard]] std::vector<DriveSpace> spaces_of(std::span<const std::filesystem::path> directories);

/// Returns the tiles that are written to a store in `drives` and read again: four of 16 MiB, or
/// smaller ones where those do not fit `room` in memory, or in two slots each on every drive.
/// Throws `Error{does_not_fit}` that names the memory or the drive if not even pages do.
[[nodiscard]] std::vector<Bytes> disk_tiles(Bytes room, std::span<const DriveSpace> drives);

}  // namespace spillway::engine
