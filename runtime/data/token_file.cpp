#include "runtime/data/token_file.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"
#include "runtime/data/detail/files.hpp"

namespace spillway::data {

static_assert(std::endian::native == std::endian::little, "token files are mapped as they are");

class TokenFile::Implementation {
 public:
  Implementation(const std::filesystem::path& path, TokenType type)
      : path_(path), type_(type), file_(open_regular_file(path)) {
    bytes_ = detail::size_of_file(file_, path_);
    check(bytes_ > 0, ErrorCode::corrupt_data,
          fmt::format("{} is empty; make it with `spillway data`", path_.string()));
    if (bytes_ % size_of(type_) != 0) {
      throw Error(ErrorCode::corrupt_data,
                  fmt::format("{}: {} bytes are not a whole number of {} tokens of {} bytes; the "
                              "file is truncated or meta.json names the wrong dtype",
                              path_.string(), bytes_, name_of(type_), size_of(type_)));
    }
    void* const address = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file_.get(), 0);
    if (address == MAP_FAILED) throw_errno(errno, fmt::format("map {}", path_.string()));
    data_ = address;
  }

  ~Implementation() { ::munmap(data_, bytes_); }
  Implementation(Implementation&&) = delete;

  [[nodiscard]] std::uint64_t size() const { return bytes_ / size_of(type_); }

  [[nodiscard]] FileStamp stamp() const {
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0)
      throw_errno(errno, fmt::format("stat {}", path_.string()));
    const auto nanoseconds = [](const timespec& time) {
      return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
    };
    return {.bytes = static_cast<std::uint64_t>(status.st_size),
            .inode = status.st_ino,
            .modified_ns = nanoseconds(status.st_mtim),
            .changed_ns = nanoseconds(status.st_ctim)};
  }

  void read(std::uint64_t first, std::span<std::int32_t> target, std::uint32_t vocab_size) const {
    if (target.size() > size() || first > size() - target.size()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: tokens {} to {} were asked for, the file has {}", path_.string(),
                              first, first + target.size(), size()));
    }
    // Touching a mapped page behind the end of a file that has shrunk would kill the process.
    const std::uint64_t bytes_now = detail::size_of_file(file_, path_);
    if (bytes_now != bytes_) {
      throw Error(ErrorCode::corrupt_data,
                  fmt::format("{}: {} bytes now, {} when it was opened; token files must not "
                              "change while they are in use",
                              path_.string(), bytes_now, bytes_));
    }
    const std::uint32_t limit = std::min(vocab_size, kMaxVocabulary);
    if (type_ == TokenType::uint16) {
      copy(static_cast<const std::uint16_t*>(data_), first, target, limit);
    } else {
      copy(static_cast<const std::uint32_t*>(data_), first, target, limit);
    }
  }

 private:
  template <class Token>
  void copy(const Token* data, std::uint64_t first, std::span<std::int32_t> target,
            std::uint32_t limit) const {
    const Token* const source = data + first;
    Token largest =
        0;  // one pass that vectorizes; the culprit is looked for only when there is one
    for (std::size_t i = 0; i < target.size(); ++i) {
      const Token token = source[i];
      largest = std::max(largest, token);
      target[i] = static_cast<std::int32_t>(token);
    }
    if (target.empty() || largest < limit) return;
    const Token* const culprit =
        std::find_if(source, source + target.size(), [&](Token token) { return token >= limit; });
    // The file may have been rewritten in between; then the position is lost, the fact is not.
    const auto offset = static_cast<std::uint64_t>(culprit - source);
    throw Error(ErrorCode::corrupt_data,
                fmt::format("{}: token {} at position {} is not below the vocabulary size {}; the "
                            "data was made with another tokenizer, or its dtype is not {}",
                            path_.string(), largest_or(culprit, source + target.size(), largest),
                            first + offset, limit, name_of(type_)));
  }

  template <class Token>
  static Token largest_or(const Token* culprit, const Token* end, Token largest) {
    return culprit == end ? largest : *culprit;
  }

  std::filesystem::path path_;
  TokenType type_;
  FileDescriptor file_;
  std::uint64_t bytes_ = 0;
  void* data_ = nullptr;
};

TokenFile::TokenFile(const std::filesystem::path& path, TokenType type)
    : implementation_(std::make_unique<Implementation>(path, type)) {}
TokenFile::~TokenFile() = default;
TokenFile::TokenFile(TokenFile&&) noexcept = default;

std::uint64_t TokenFile::size() const { return implementation_->size(); }
FileStamp TokenFile::stamp() const { return implementation_->stamp(); }

void TokenFile::read(std::uint64_t first, std::span<std::int32_t> target,
                     std::uint32_t vocab_size) const {
  implementation_->read(first, target, vocab_size);
}

}  // namespace spillway::data
