// Which NCCL device communicators can use. Needs no headers of NVIDIA's.
#pragma once

#include <optional>
#include <string>

#include "runtime/base/shared_library.hpp"

namespace spillway::comm::detail {

/// Communicators that do not block, and whose errors are asked for, have been reliable since then:
/// 2.18.1.
inline constexpr int kOldestNccl = 21801;
/// From here on several communicators are aborted in one group: 2.22.3, the first 2.22.
inline constexpr int kFirstWithGroupAborts = 22203;

/// Returns why a libnccl.so.2 is not used; nothing if it is. Every version 2 has this name,
/// whatever CUDA it was built for. `version`: what it reports, if it does.
[[nodiscard]] std::string reason_against_nccl(const std::string& path, std::optional<int> version);

/// Asks the library. `GetVersion`: type of ncclGetVersion, whose result is NCCL's own enum.
template <class GetVersion>
[[nodiscard]] std::string reason_against_nccl(const LibraryCandidate& library) {
  auto* const version_of = library.function<GetVersion>("ncclGetVersion");
  int version = 0;
  const bool told = version_of != nullptr && static_cast<int>(version_of(&version)) == 0;
  return reason_against_nccl(library.path(), told ? std::optional(version) : std::nullopt);
}

/// Returns "2.28.9" for 22809.
[[nodiscard]] std::string nccl_version_text(int version);

}  // namespace spillway::comm::detail
