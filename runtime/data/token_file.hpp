// Token files: plain little-endian uint16 or uint32 arrays, as nanoGPT writes them, memory-mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "runtime/data/meta.hpp"

namespace spillway::data {

/// What the file system says of a file: two that are equal are of one file whose content nobody has
/// changed in between. Content can be written with an old time of modification, but not with an old
/// time of change.
struct FileStamp {
  std::uint64_t bytes = 0;
  std::uint64_t inode = 0;
  std::int64_t modified_ns = 0;  ///< since 1970
  std::int64_t changed_ns = 0;
  bool operator==(const FileStamp&) const = default;
};

/// A read-only view of one token file. Any thread.
class TokenFile {
 public:
  /// Throws when the size is not a multiple of the token size, or the file is empty.
  TokenFile(const std::filesystem::path& path, TokenType type);
  ~TokenFile();
  TokenFile(TokenFile&&) noexcept;

  [[nodiscard]] std::uint64_t size() const;  ///< tokens
  [[nodiscard]] FileStamp stamp() const;
  /// Copies tokens [first, first + target.size()). Throws `Error{corrupt_data}` naming file,
  /// position and value of a token that is not below `vocab_size`, or when the file has changed its
  /// size since it was mapped. Allocates nothing, opens nothing.
  void read(std::uint64_t first, std::span<std::int32_t> target, std::uint32_t vocab_size) const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace spillway::data
