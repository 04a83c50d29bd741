// SharedLibrary: a library that is loaded when it is first wanted, so that the same program runs
// where it is missing. Any thread.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace spillway {

/// A candidate is a library that may be taken. Nothing of it is used but what tells its version.
class LibraryCandidate {
 public:
  LibraryCandidate(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}

  /// Returns a function of the library; null if it has none of this name.
  template <class Function>
  [[nodiscard]] Function* function(const char* name) const {
    return reinterpret_cast<Function*>(address_of(name));
  }
  /// Returns the file in which it is.
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  [[nodiscard]] void* address_of(const char* name) const;

  void* handle_;
  std::string path_;
};

/// Returns why a candidate is not taken, in words that go on behind its name ("is cuDNN 9.10.2, and
/// ..."); nothing if it is.
using LibraryCheck = std::function<std::string(const LibraryCandidate&)>;

/// Keeps the library loaded until the process ends: what it started may not be unloaded.
class SharedLibrary {
 public:
  /// Opens the first of `directories` (an empty one: the dynamic linker's own places) that has
  /// `file_name`, a versioned name such as libcublasLt.so.13, and that is `wanted`. One that is
  /// passed over is named in a warning, once in a process, and leaves nothing that another library
  /// would be given. Throws `Error{not_supported}` that names every place tried, why each failed,
  /// and `remedy`.
  SharedLibrary(std::string_view file_name, std::span<const std::filesystem::path> directories,
                std::string_view remedy, const LibraryCheck& wanted = {});

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
