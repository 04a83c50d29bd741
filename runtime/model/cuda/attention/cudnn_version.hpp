// Which cuDNN attention can use. Needs no headers of NVIDIA's.
#pragma once

#include <string>

#include "runtime/base/shared_library.hpp"

namespace spillway::model::cuda {

/// Returns why attention does not use a libcudnn.so.9; nothing if it does. Every version 9 has this
/// name, whatever CUDA it was built for, and one for CUDA 12 finds no engine for any graph.
[[nodiscard]] std::string reason_against_cudnn(const LibraryCandidate& library);

}  // namespace spillway::model::cuda
