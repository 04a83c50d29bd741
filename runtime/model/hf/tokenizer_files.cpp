#include "runtime/model/hf/tokenizer_files.hpp"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"

namespace spillway::model {
namespace {

namespace fs = std::filesystem;

/// Bounds a file's size: the largest in use have some 40 MB.
constexpr Bytes kLargestFile = 256_MiB;

constexpr std::array<std::string_view, 13> kNames{"tokenizer.json",
                                                  "tokenizer_config.json",
                                                  "tokenizer.model",
                                                  "special_tokens_map.json",
                                                  "added_tokens.json",
                                                  "vocab.json",
                                                  "vocab.txt",
                                                  "merges.txt",
                                                  "spiece.model",
                                                  "sentencepiece.bpe.model",
                                                  "chat_template.jinja",
                                                  "chat_template.json",
                                                  "generation_config.json"};

}  // namespace

std::vector<std::string> tokenizer_files(const fs::path& directory) {
  std::vector<std::string> names;
  for (const std::string_view name : kNames) {
    const fs::path path = directory / name;
    if (is_there(path) && fs::is_regular_file(path)) names.emplace_back(name);
  }
  return names;
}

std::string read_tokenizer_file(const fs::path& path) { return read_text_file(path, kLargestFile); }

void copy_tokenizer_files(const fs::path& directory, const fs::path& target) {
  const std::vector<std::string> names = tokenizer_files(directory);
  if (names.empty() || fs::exists(target)) return;
  const fs::path partial =
      target.parent_path() / fmt::format(".{}.partial", target.filename().string());
  std::error_code failed;
  fs::remove_all(partial, failed);  // a leftover of a killed process
  if (!failed) fs::create_directory(partial, failed);
  if (failed) throw_errno(failed.value(), fmt::format("create {}", partial.string()));
  for (const std::string& name : names) {
    write_file_atomically(partial / name, std::string_view(read_tokenizer_file(directory / name)));
  }
  fs::rename(partial, target, failed);
  if (failed) throw_errno(failed.value(), fmt::format("rename to {}", target.string()));
  synchronize_directory(target.parent_path());
}

}  // namespace spillway::model
