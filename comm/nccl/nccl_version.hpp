// Which NCCL device communicators can use. Needs no headers of NVIDIA's.
#pragma once

#include <string>

#include "runtime/base/shared_library.hpp"

namespace spillway::comm::detail {

/// Communicators that do not block, and whose errors are asked for, have been reliable since then:
/// 2.18.1.
inline constexpr int kOldestNccl = 21801;

/// Returns why a libnccl.so.2 is not used; nothing if it is. Every version 2 has this name,
/// whatever CUDA it was built for.
[[nodiscard]] std::string reason_against_nccl(const LibraryCandidate& library);

/// Returns "2.28.9" for 22809.
[[nodiscard]] std::string nccl_version_text(int version);

}  // namespace spillway::comm::detail
