#include "runtime/base/shared_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <map>

#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/mutex.hpp"

namespace spillway {
namespace {

/// Opens a library to look at it, and closes it again.
class Look {
 public:
  /// It lies in a namespace of its own: libraries of NVIDIA's load parts of themselves by bare
  /// names, which stay, and another version would be given the same parts. What the process has
  /// already is what it would get, and a linker without namespaces has no other place.
  explicit Look(const std::string& path) : handle_(::dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD)) {
    if (handle_ == nullptr) handle_ = ::dlmopen(LM_ID_NEWLM, path.c_str(), RTLD_NOW);
    if (handle_ == nullptr) handle_ = ::dlopen(path.c_str(), RTLD_NOW);
  }
  Look(const Look&) = delete;
  Look& operator=(const Look&) = delete;
  ~Look() {
    if (handle_ != nullptr) ::dlclose(handle_);
  }

  [[nodiscard]] bool found() const { return handle_ != nullptr; }
  [[nodiscard]] LibraryCandidate candidate() const {
    const link_map* file = nullptr;
    const bool known = ::dlinfo(handle_, RTLD_DI_LINKMAP, static_cast<void*>(&file)) == 0;
    return {handle_, known ? file->l_name : ""};
  }

 private:
  void* handle_;
};

/// A library that was passed over stays so in this process: a look may leave its namespace behind,
/// and there are 16.
struct PassedOver {
  Mutex mutex;
  std::map<std::string, std::string> reasons SPILLWAY_GUARDED_BY(mutex);  // by path
};
PassedOver& passed_over() {
  static PassedOver all;
  return all;
}

/// Returns why the library is not taken, its file first; nothing if it is, or is not there.
std::string reason_against(const std::string& path, const LibraryCheck& wanted) {
  if (!wanted) return {};
  PassedOver& all = passed_over();
  const Lock lock(all.mutex);
  if (const auto known = all.reasons.find(path); known != all.reasons.end()) return known->second;
  const Look look(path);
  if (!look.found()) return {};
  const LibraryCandidate candidate = look.candidate();
  std::string reason = wanted(candidate);
  if (reason.empty()) return reason;
  reason = candidate.path() + " " + reason;
  log_warning("{}; it is passed over", reason);
  return all.reasons[path] = reason;
}

}  // namespace

void* LibraryCandidate::address_of(const char* name) const { return ::dlsym(handle_, name); }

SharedLibrary::SharedLibrary(std::string_view file_name,
                             std::span<const std::filesystem::path> directories,
                             std::string_view remedy, const LibraryCheck& wanted) {
  std::string tried;
  for (const std::filesystem::path& directory : directories) {
    path_ = directory.empty() ? std::string(file_name) : (directory / file_name).string();
    const std::string refused = reason_against(path_, wanted);
    if (!refused.empty()) {
      tried += "\n  " + refused;
      continue;
    }
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
