// SharedLibrary: a library that is loaded when it is first wanted, so that the same program runs
// where it is missing. Any thread.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace spillway {

/// Keeps the library loaded until the process ends: what it started may not be unloaded.
class SharedLibrary {
 public:
  /// Opens the first of `directories` (an empty one: the dynamic linker's own places) that has
  /// `file_name`, a versioned name such as libcublasLt.so.13. Throws `Error{not_supported}` that
  /// names every place tried, why each failed, and `remedy`.
  SharedLibrary(std::string_view file_name, std::span<const std::filesystem::path> directories,
                std::string_view remedy);

  /// Returns a function of the library; throws `Error{not_supported}` if it has none of this name.
  template <class Function>
  [[nodiscard]] Function* function(const char* name) const {
    return reinterpret_cast<Function*>(address_of(name));
  }
  /// Returns the handle as dlopen gave it, for libraries that look up functions themselves.
  [[nodiscard]] void* native() const { return handle_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  [[nodiscard]] void* address_of(const char* name) const;

  void* handle_ = nullptr;
  std::string path_;  ///< as it was found
};

}  // namespace spillway
