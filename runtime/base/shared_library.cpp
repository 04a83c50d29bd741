#include "runtime/base/shared_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include "runtime/base/error.hpp"

namespace spillway {

SharedLibrary::SharedLibrary(std::string_view file_name,
                             std::span<const std::filesystem::path> directories,
                             std::string_view remedy) {
  std::string tried;
  for (const std::filesystem::path& directory : directories) {
    path_ = directory.empty() ? std::string(file_name) : (directory / file_name).string();
    handle_ = ::dlopen(path_.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle_ != nullptr) return;
    const char* reason = ::dlerror();
    tried += fmt::format("\n  {}", reason != nullptr ? reason : path_);
  }
  throw Error(ErrorCode::not_supported,
              fmt::format("{} could not be loaded: {}{}", file_name, remedy, tried));
}

void* SharedLibrary::address_of(const char* name) const {
  void* address = ::dlsym(handle_, name);
  check(address != nullptr, ErrorCode::not_supported,
        fmt::format("{} has no function {}: a newer version is needed", path_, name));
  return address;
}

}  // namespace spillway
