// Any meta.json and any token file are read or refused by an Error, and what is read can be
// written. Input: 2 bytes, the length of the meta.json, its text, then the token file.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/data/sampler.hpp"
#include "runtime/data/token_file.hpp"
#include "runtime/data/tokenizer.hpp"

namespace {

using spillway::Error;
using spillway::data::Meta;

void require(bool condition) {
  if (!condition) std::abort();
}

/// A file of these bytes that has a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    require(descriptor_ >= 0);
    require(::write(descriptor_, bytes.data(), bytes.size()) ==
            static_cast<::ssize_t>(bytes.size()));
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(MemoryFile&&) = delete;
  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

std::vector<std::int32_t> read_tokens(const Meta& meta, std::string_view bytes) {
  const MemoryFile memory(bytes);
  const spillway::data::TokenFile file(memory.path(), meta.dtype);
  require(file.size() * size_of(meta.dtype) == bytes.size());
  std::vector<std::int32_t> tokens(file.size());
  const spillway::data::Sampler sampler(file.size(), 1, spillway::data::Order::shuffled, 1);
  require(sampler.first_token(bytes.size()) + 1 < file.size());
  file.read(0, tokens, meta.vocab_size);
  return tokens;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.size() < 2) return 0;
  const std::size_t meta_size = data[0] + 256U * data[1];
  input.remove_prefix(2);
  const std::string_view meta_text = input.substr(0, meta_size);
  input.remove_prefix(meta_text.size());
  try {
    const Meta meta = spillway::data::parse_meta(meta_text, "fuzz");
    require(spillway::data::parse_meta(to_meta_json(meta), "again") == meta);
    const std::vector<std::int32_t> tokens = read_tokens(meta, input);
    for (const std::int32_t token : tokens) {
      require(token >= 0 && static_cast<std::uint32_t>(token) < meta.vocab_size);
    }
    const spillway::data::Tokenizer tokenizer(meta);
    require(tokenizer.encode(tokenizer.decode(tokens)) == tokens);
  } catch (const Error&) {
    return 0;
  }
  return 0;
}
