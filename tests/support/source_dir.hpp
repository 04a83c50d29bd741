// Where the sources are that a test reads: golden files, examples, documents.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>

namespace spillway::test_support {

/// Returns SPILLWAY_SOURCE_DIR, which CTest sets for tests that declare INPUTS; else the checkout
/// above the program. The programs of two checkouts are the same bytes: none holds its own path.
inline std::filesystem::path source_dir() {
  namespace fs = std::filesystem;
  if (const char* given = std::getenv("SPILLWAY_SOURCE_DIR")) return given;
  const fs::path program = fs::read_symlink("/proc/self/exe");
  for (fs::path folder = program.parent_path(); folder != folder.root_path();
       folder = folder.parent_path()) {
    if (fs::exists(folder / "CMakePresets.json")) return folder;
  }
  throw std::runtime_error("no checkout above " + program.string() +
                           ": name it in SPILLWAY_SOURCE_DIR");
}

}  // namespace spillway::test_support
