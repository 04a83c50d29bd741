#include "comm/nccl/nccl_version.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string_view>

namespace spillway::comm::detail {
namespace {

constexpr int kCudaMajor = 13;
/// NCCL has no function that says which CUDA it was built with. Its own text does, which it prints
/// where NCCL_DEBUG asks for it: "NCCL version 2.28.9+cuda13.0".
constexpr std::string_view kMark = "+cuda";
/// The texts lie before the code for GPUs, which is most of the file.
constexpr std::size_t kMostRead = std::size_t{64} << 20;
constexpr std::size_t kChunk = std::size_t{1} << 20;
constexpr std::size_t kLongest = 32;  ///< of the mark with what follows it

/// Returns the first number of the version of CUDA in the text; nothing if there is none.
std::optional<int> cuda_major_in(std::string_view text) {
  for (std::size_t at = text.find(kMark); at != text.npos; at = text.find(kMark, at + 1)) {
    int major = 0;
    const char* const first = text.data() + at + kMark.size();
    const auto [end, status] = std::from_chars(first, text.data() + text.size(), major);
    if (status == std::errc{} && end != text.data() + text.size() && *end == '.') return major;
  }
  return std::nullopt;
}

std::optional<int> cuda_major_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  for (std::size_t read = 0; file && read < kMostRead; read += kChunk) {
    text.erase(0, text.size() - std::min(text.size(), kLongest));
    const std::size_t kept = text.size();
    text.resize(kept + kChunk);  // zeros where the file ends before
    file.read(text.data() + kept, kChunk);
    if (const auto major = cuda_major_in(text)) return major;
  }
  return std::nullopt;
}

}  // namespace

std::string reason_against_nccl(const std::string& path, std::optional<int> version) {
  if (!version) return "does not tell its version";
  const std::string text = nccl_version_text(*version);
  if (*version < kOldestNccl) {
    return fmt::format("is NCCL {}, and {} or newer is needed", text,
                       nccl_version_text(kOldestNccl));
  }
  const std::optional<int> cuda = cuda_major_of(path);
  if (!cuda || *cuda == kCudaMajor) return {};
  return fmt::format("is NCCL {} for CUDA {}, and one for CUDA {} is needed", text, *cuda,
                     kCudaMajor);
}

std::string nccl_version_text(int version) {
  // Until 2.8 a version had four digits.
  const int major = version < 10'000 ? version / 1000 : version / 10'000;
  const int minor = version < 10'000 ? version % 1000 / 100 : version % 10'000 / 100;
  return fmt::format("{}.{}.{}", major, minor, version % 100);
}

}  // namespace spillway::comm::detail
