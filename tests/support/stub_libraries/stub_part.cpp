// The part of a stub of cuDNN that knows its version.
#include <cstddef>

extern "C" {
std::size_t part_version() { return STUB_CUDNN; }
std::size_t part_cuda() { return STUB_CUDA; }
}
