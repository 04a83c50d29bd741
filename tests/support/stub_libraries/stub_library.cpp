// What cuDNN and NCCL say of themselves, and no more: libcudnn.so.9 and libnccl.so.2 of the
// versions that CMakeLists.txt names. As in cuDNN, a part that is found by its bare name knows the
// version.
#include <cstddef>

extern "C" {
extern const char stub_text[];
const char stub_text[] = "NCCL version " STUB_NCCL_TEXT "+cuda" STUB_CUDA_TEXT;

std::size_t part_version();
std::size_t part_cuda();

std::size_t cudnnGetVersion() { return part_version(); }
std::size_t cudnnGetCudartVersion() { return part_cuda(); }
int ncclGetVersion(int* version) {
  *version = STUB_NCCL;
  return 0;
}
}
