// Token files: plain little-endian uint16 or uint32 arrays, as nanoGPT writes them, memory-mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "runtime/data/meta.hpp"

namespace spillway::data {

/// Read-only view of one token file. Any thread.
class TokenFile {
 public:
  /// Throws when the size is not a multiple of the token size, or the file is empty.
  TokenFile(const std::filesystem::path& path, TokenType type);
  ~TokenFile();
  TokenFile(TokenFile&&) noexcept;

  [[nodiscard]] std::uint64_t size() const;  ///< tokens
  /// Copies tokens [first, first + target.size()). Throws `Error{corrupt_data}` naming file,
  /// position and value of a token that is not below `vocab_size`, or when the file has changed its
  /// size since it was mapped. Allocates nothing, opens nothing.
  void read(std::uint64_t first, std::span<std::int32_t> target, std::uint32_t vocab_size) const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace spillway::data
