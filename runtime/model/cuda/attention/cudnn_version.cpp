#include "runtime/model/cuda/attention/cudnn_version.hpp"

#include <fmt/format.h>

#include <cstddef>

namespace spillway::model::cuda {
namespace {

constexpr std::size_t kOldestCudnn = 91800;  ///< 9.18.0
constexpr std::size_t kCudaMajor = 13;

}  // namespace

std::string reason_against_cudnn(const LibraryCandidate& library) {
  auto* const version_of = library.function<std::size_t()>("cudnnGetVersion");
  auto* const cuda_of = library.function<std::size_t()>("cudnnGetCudartVersion");
  if (version_of == nullptr || cuda_of == nullptr) return "does not tell its version";
  const std::size_t version = version_of();
  const std::size_t cuda = cuda_of();
  if (version >= kOldestCudnn && cuda / 1000 == kCudaMajor) return {};
  return fmt::format("is cuDNN {}.{}.{} for CUDA {}.{}, and 9.18 or newer for CUDA {} is needed",
                     version / 10'000, version % 10'000 / 100, version % 100, cuda / 1000,
                     cuda % 1000 / 10, kCudaMajor);
}

}  // namespace spillway::model::cuda
