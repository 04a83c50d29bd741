// Where NVIDIA's libraries (cuBLASLt, cuDNN, NCCL) may lie, for SharedLibrary. They are not linked:
// PyTorch's users have them as Python packages, others in the system or in CUDA's folders.
#pragma once

#include <filesystem>
#include <vector>

namespace spillway {

/// Returns existing directories, in the order in which to try them. First an empty path, which
/// stands for the dynamic linker's own places, LD_LIBRARY_PATH included; then beside the program,
/// where the build found the libraries, CUDA's folders, and the packages `nvidia/{cu13,cudnn,nccl}`
/// of the Pythons below `root` and of the user's own. Any thread.
[[nodiscard]] std::vector<std::filesystem::path> cuda_library_directories(
    const std::filesystem::path& root = "/");

}  // namespace spillway
