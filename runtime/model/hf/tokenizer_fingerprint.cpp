#include "runtime/model/hf/tokenizer_fingerprint.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/model/hf/tokenizer_files.hpp"

namespace spillway::model {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Returns the CRC-32 that zlib, PNG and Ethernet have.
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

/// Returns ids with tokens, in order: vocabularies are objects of ids or (unigram) lists of pairs.
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

std::string hexadecimal_crc(std::string_view bytes) { return fmt::format("{:08x}", crc32(bytes)); }

std::string fingerprint_of_tokens(const json& document) {
  std::vector<std::string> lines;
  for (const auto& [id, token] : tokens_of(document)) {
    lines.push_back(fmt::format("{} {}", id, token));
  }
  if (const auto merges = document.at("model").find("merges");
      merges != document.at("model").end()) {
    for (const json& merge : *merges) lines.push_back(merge_line(merge));
  }
  return hexadecimal_crc(fmt::format("{}", fmt::join(lines, "\n")));
}

/// Gives what versions of the library write in two ways its one form, in `value` and all below it.
void settle(json& value) {
  if (value.is_structured()) {
    for (json& part : value) settle(part);
  }
  if (!value.is_object()) return;
  const auto type = value.find("type");
  if (type == value.end()) return;
  if (*type == "ByteLevel") {
    value.erase("trim_offsets");
    value.emplace("use_regex", true);
  } else if (*type == "Metaspace") {
    const auto prefix = value.find("add_prefix_space");
    value.emplace("prepend_scheme", prefix != value.end() && *prefix == false ? "never" : "always");
    value.emplace("split", true);
    value.erase("add_prefix_space");
    value.erase("str_rep");
  }
}

bool says_nothing(const json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

void add_text(const json& value, std::string& text) {
  const auto add_string = [&text](const std::string& part) {
    text += fmt::format("{}:{}", part.size(), part);
  };
  if (value.is_string()) {
    add_string(value.get_ref<const std::string&>());
  } else if (value.is_number()) {
    text += fmt::format("n{:016x}", std::bit_cast<std::uint64_t>(value.get<double>()));
  } else if (value.is_array()) {
    text += '[';
    for (const json& part : value) add_text(part, text);
    text += ']';
  } else if (value.is_object()) {
    text += '{';
    for (const auto& [key, part] : value.items()) {
      if (says_nothing(part)) continue;
      add_string(key);
      add_text(part, text);
    }
    text += '}';
  } else {
    text += value == true ? 't' : '-';
  }
}

/// Returns a member that may be absent.
json member(const json& document, const char* name) { return document.value(name, json()); }

/// Returns the added tokens in order of id.
json added_tokens_of(const json& document) {
  const auto added = document.find("added_tokens");
  if (added == document.end() || added->is_null()) return {};
  std::multimap<std::uint64_t, json> by_id;
  for (const json& token : *added) by_id.emplace(token.at("id").get<std::uint64_t>(), token);
  json result = json::array();
  for (auto& [id, token] : by_id) result.push_back(std::move(token));
  return result;
}

std::string fingerprint_of_rules(const json& document) {
  json model = document.at("model");
  if (model.contains("merges")) model["type"] = "BPE";
  json scores = json::array();
  if (model.at("vocab").is_array()) {
    for (const json& entry : model.at("vocab")) scores.push_back(entry.at(1));
  }
  model.erase("vocab");
  model.erase("merges");
  json rules = json::array({member(document, "normalizer"), member(document, "pre_tokenizer"),
                            added_tokens_of(document), std::move(model), std::move(scores)});
  settle(rules);
  std::string text;
  add_text(rules, text);
  return hexadecimal_crc(text);
}

}  // namespace

std::optional<TokenizerFingerprint> tokenizer_fingerprint(const fs::path& path) {
  const fs::path file = path.extension() == ".json" ? path : path / "tokenizer.json";
  if (!is_there(file)) return std::nullopt;
  try {
    const json document = parse_json(read_tokenizer_file(file), {.origin = file.string()});
    return TokenizerFingerprint{.tokens = fingerprint_of_tokens(document),
                                .rules = fingerprint_of_rules(document)};
  } catch (const json::exception& error) {
    throw Error(ErrorCode::corrupt_data,
                fmt::format("{} is no tokenizer: {}", file.string(), error.what()));
  }
}

}  // namespace spillway::model
