#include "runtime/base/cuda_library_directories.hpp"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <system_error>

namespace spillway {
namespace {

namespace fs = std::filesystem;

/// What CMake found, separated by colons. Folders of the checkout are relative to it. Empty in a
/// build without CUDA.
constexpr std::string_view kBuildDirectories = SPILLWAY_CUDA_LIBRARY_DIRECTORIES;

void add(std::vector<fs::path>& directories, const fs::path& directory) {
  std::error_code ignored;  // a folder that may not be read is as good as none
  if (!fs::is_directory(directory, ignored)) return;
  if (std::ranges::find(directories, directory) == directories.end()) {
    directories.push_back(directory);
  }
}

/// Adds `directory`, or where it is relative that below each folder above the program: a build
/// folder lies in its checkout.
void add_found_by_build(std::vector<fs::path>& directories, const fs::path& directory,
                        const fs::path& program) {
  if (directory.is_absolute()) return add(directories, directory);
  for (fs::path above = program.parent_path(); above.has_relative_path();
       above = above.parent_path()) {
    add(directories, above / directory);
  }
}

/// The entries of `folder` whose names start with `prefix`, the last name first: python3.9 comes
/// before python3.13, but which Python the packages belong to does not matter.
std::vector<fs::path> entries(const fs::path& folder, std::string_view prefix) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (fs::directory_iterator entry(folder, ignored); !ignored && entry != fs::end(entry);
       entry.increment(ignored)) {
    if (entry->path().filename().string().starts_with(prefix)) found.push_back(entry->path());
  }
  std::ranges::sort(found, std::ranges::greater());
  return found;
}

void add_python_packages(std::vector<fs::path>& directories, const fs::path& library_folder) {
  for (const fs::path& python : entries(library_folder, "python3")) {
    for (const char* const packages : {"site-packages", "dist-packages"}) {
      for (const char* const name : {"cu13", "cudnn", "nccl"}) {
        add(directories, python / packages / "nvidia" / name / "lib");
      }
    }
  }
}

/// Returns that of the user database: the library reads no environment variables. An entry that
/// does not fit is as good as none.
fs::path home_directory() {
  std::array<char, 4096> text{};
  passwd entry{};
  passwd* user = nullptr;
  static_cast<void>(::getpwuid_r(::getuid(), &entry, text.data(), text.size(), &user));
  return user != nullptr && user->pw_dir != nullptr ? user->pw_dir : "";
}

}  // namespace

std::vector<fs::path> cuda_library_directories(const fs::path& root) {
  std::vector<fs::path> directories{fs::path()};
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  if (!program.empty()) {
    add(directories, program.parent_path());
    add(directories, program.parent_path().parent_path() / "lib");
  }
  for (std::string_view rest = kBuildDirectories; !rest.empty();) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    add_found_by_build(directories, rest.substr(0, end), program);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  add(directories, root / "usr/local/cuda/lib64");
  add_python_packages(directories, root / "usr/lib");
  add_python_packages(directories, root / "usr/local/lib");
  const fs::path home = home_directory();
  if (!home.empty()) add_python_packages(directories, root / home.relative_path() / ".local/lib");
  return directories;
}

}  // namespace spillway
