// The machines of docs/machines by name. The program has the descriptions in itself, so that a name
// works wherever it is installed.
//
// A description FILE.json is called FILE; FILE-MEMORY, FILE-DRIVES and FILE-MEMORY-DRIVES are the
// same with another size of host memory and other drives: rtx-4090, rtx-4090-64gb-2ssd.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/bench/machine_description.hpp"

namespace spillway::bench {

/// A file of docs/machines.
struct MachineText {
  std::string_view name;  ///< of the file, without its extension
  std::string_view json;
};

/// Returns the files that tools/bench/CMakeLists.txt lists, in that order.
[[nodiscard]] std::span<const MachineText> machine_texts();

/// Returns all names, machine by machine.
[[nodiscard]] std::vector<std::string> machine_names();

/// Returns the names that leave nothing open: those of each memory with each set of drives, of the
/// descriptions that have either.
[[nodiscard]] std::vector<std::string> built_machine_names();

/// Takes a name or the path of a description; a file goes first. Throws `Error{invalid_argument}`
/// with the nearest names if there is none such.
[[nodiscard]] MachineDescription machine_from(const std::filesystem::path& name_or_path);

}  // namespace spillway::bench
