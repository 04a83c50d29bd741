#include "runtime/model/tokenizer_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"

namespace spillway::model {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// The largest in use have some 40 MB.
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

/// CRC-32 as zlib, PNG and Ethernet have it.
std::uint32_t crc32(std::string_view bytes) {
  constexpr std::uint32_t kReflectedPolynomial = 0xedb88320U;
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1U) != 0 ? kReflectedPolynomial : 0U);
    }
    table[i] = value;
  }
  std::uint32_t crc = ~0U;
  for (const char c : bytes) {
    crc = (crc >> 8) ^ table[(crc ^ static_cast<unsigned char>(c)) & 0xffU];
  }
  return ~crc;
}

/// Ids and tokens in order of id: vocabularies are objects of ids, or (unigram) lists of pairs.
std::set<std::pair<std::uint64_t, std::string>> tokens_of(const json& document) {
  std::set<std::pair<std::uint64_t, std::string>> tokens;
  const json& vocabulary = document.at("model").at("vocab");
  if (vocabulary.is_object()) {
    for (const auto& [token, id] : vocabulary.items()) {
      tokens.emplace(id.get<std::uint64_t>(), token);
    }
  } else {
    for (std::size_t id = 0; id < vocabulary.size(); ++id) {
      tokens.emplace(id, vocabulary.at(id).at(0).get<std::string>());
    }
  }
  if (const auto added = document.find("added_tokens"); added != document.end()) {
    for (const json& token : *added) {
      tokens.emplace(token.at("id").get<std::uint64_t>(), token.at("content").get<std::string>());
    }
  }
  return tokens;
}

/// Versions of the library write a merge as "a b" or as ["a", "b"].
std::string merge_line(const json& merge) {
  if (merge.is_string()) return merge.get<std::string>();
  return fmt::format("{} {}", merge.at(0).get<std::string>(), merge.at(1).get<std::string>());
}

std::string fingerprint_of(const json& document) {
  std::vector<std::string> lines;
  for (const auto& [id, token] : tokens_of(document)) {
    lines.push_back(fmt::format("{} {}", id, token));
  }
  if (const auto merges = document.at("model").find("merges");
      merges != document.at("model").end()) {
    for (const json& merge : *merges) lines.push_back(merge_line(merge));
  }
  return fmt::format("{:08x}", crc32(fmt::format("{}", fmt::join(lines, "\n"))));
}

}  // namespace

std::vector<std::string> tokenizer_files(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const std::string_view name : kNames) {
    if (fs::is_regular_file(directory / name, ignored)) names.emplace_back(name);
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

std::optional<std::string> tokenizer_fingerprint(const fs::path& path) {
  const fs::path file = path.extension() == ".json" ? path : path / "tokenizer.json";
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return std::nullopt;
  try {
    return fingerprint_of(json::parse(read_tokenizer_file(file)));
  } catch (const json::exception& error) {
    throw Error(ErrorCode::corrupt_data,
                fmt::format("{} is no tokenizer: {}", file.string(), error.what()));
  }
}

}  // namespace spillway::model
