// RegisteredBuffers: memory whose pages an io_uring keeps pinned. Control thread only.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway::nvme_swap::detail {

/// A submission entry holds 32 bits of length; what is longer comes back short and is continued.
inline constexpr std::size_t kMaxTransfer = std::size_t{1} << 30;

/// Returns the remedy for a refused call of io_uring, in words that follow the error.
inline std::string_view remedy_for(int error_number) {
  if (error_number == EPERM || error_number == EACCES) {
    return " (kernel.io_uring_disabled or a seccomp filter forbids it)";
  }
  if (error_number == ENOMEM) return " (raise the locked-memory limit, ulimit -l)";
  return "";
}

/// Memory registered with a ring, in chunks that the kernel accepts.
class RegisteredBuffers {
 public:
  /// Returns the chunks of `buffers`, by address.
  [[nodiscard]] static std::vector<iovec> chunks_of(std::span<const std::span<std::byte>> buffers) {
    std::vector<iovec> chunks;
    for (const std::span<std::byte> buffer : buffers) {
      for (std::size_t begin = 0; begin < buffer.size(); begin += kMaxTransfer) {
        chunks.push_back({.iov_base = buffer.data() + begin,
                          .iov_len = std::min(kMaxTransfer, buffer.size() - begin)});
      }
    }
    std::sort(chunks.begin(), chunks.end(),
              [](const iovec& a, const iovec& b) { return a.iov_base < b.iov_base; });
    return chunks;
  }

  /// Takes the chunks that a ring has registered, in their order.
  void keep(std::vector<iovec> chunks) { chunks_ = std::move(chunks); }

  [[nodiscard]] bool empty() const { return chunks_.empty(); }

  /// Finds the chunk with all of a request's memory; nothing if none has it.
  [[nodiscard]] std::optional<int> find(const std::byte* data, std::size_t length) const {
    const auto after = std::upper_bound(
        chunks_.begin(), chunks_.end(), data,
        [](const std::byte* left, const iovec& right) { return left < right.iov_base; });
    if (after == chunks_.begin()) return std::nullopt;
    const iovec& chunk = *std::prev(after);
    const auto begin = static_cast<std::size_t>(data - static_cast<std::byte*>(chunk.iov_base));
    if (begin > chunk.iov_len || length > chunk.iov_len - begin) return std::nullopt;
    return static_cast<int>(std::prev(after) - chunks_.begin());
  }

 private:
  std::vector<iovec> chunks_;  // by address
};

}  // namespace spillway::nvme_swap::detail
