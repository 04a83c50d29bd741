// Token files: plain little-endian uint16 or uint32 arrays, as nanoGPT writes them, memory-mapped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace spillway::data {

enum class TokenType : std::uint8_t { uint16, uint32 };

/// `meta.json` beside the token files.
struct Meta {
  TokenType dtype = TokenType::uint16;
  std::uint32_t vocab_size = 0;
  std::optional<std::string> tokenizer;  ///< "bytes", "chars" or a path; see tokenizer.hpp
};

[[nodiscard]] Meta load_meta(const std::filesystem::path& meta_json);

/// Read-only view of one token file. Any thread.
class TokenFile {
 public:
  /// Throws when the size is not a multiple of the token size, or the file is empty.
  TokenFile(const std::filesystem::path& path, TokenType type);
  ~TokenFile();
  TokenFile(TokenFile&&) noexcept;

  [[nodiscard]] std::uint64_t size() const;  ///< tokens
  /// Copies tokens [first, first + target.size()). Throws `Error{corrupt_data}` naming file,
  /// position and value of a token that is not below `vocab_size`.
  void read(std::uint64_t first, std::span<std::int32_t> target, std::uint32_t vocab_size) const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace spillway::data
