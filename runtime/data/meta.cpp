#include "runtime/data/meta.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/data/detail/utf8.hpp"
#include "runtime/data/tokenizer.hpp"

namespace spillway::data {
namespace {

using nlohmann::json;

/// Every Unicode character with its JSON escape is far below this.
constexpr Bytes kMaxMetaBytes = 64_MiB;
constexpr std::array kTokenTypes{TokenType::uint16, TokenType::uint32};

[[noreturn]] void refuse(std::string_view origin, std::string_view what) {
  throw Error(ErrorCode::corrupt_data, fmt::format("{}: {}", origin, what));
}

/// A value as it may stand in a message.
std::string shown(const json& value) {
  if (value.is_structured()) return value.is_object() ? "an object" : "an array";
  return value.dump().substr(0, 64);
}

TokenType parse_token_type(const json& fields, std::string_view origin) {
  const auto found = fields.find("dtype");
  if (found == fields.end()) refuse(origin, "`dtype` is missing; write \"uint16\" or \"uint32\"");
  for (const TokenType type : kTokenTypes) {
    if (*found == name_of(type)) return type;
  }
  refuse(origin, fmt::format("`dtype` is {}; write \"uint16\" or \"uint32\"", shown(*found)));
}

std::uint32_t parse_vocab_size(const json& fields, std::string_view origin) {
  const auto found = fields.find("vocab_size");
  if (found == fields.end()) {
    refuse(origin, "`vocab_size` is missing; write the number of token ids");
  }
  const bool in_range = found->is_number_unsigned() && found->get<std::uint64_t>() > 0 &&
                        found->get<std::uint64_t>() <= kMaxVocabulary;
  if (!in_range) {
    refuse(origin, fmt::format("`vocab_size` is {}; write a whole number from 1 to {}",
                               shown(*found), kMaxVocabulary));
  }
  return found->get<std::uint32_t>();
}

/// Reads a string that may be absent.
std::optional<std::string> parse_text(const json& fields, std::string_view key,
                                      std::string_view origin) {
  const auto found = fields.find(key);
  if (found == fields.end()) return std::nullopt;
  if (!found->is_string()) refuse(origin, fmt::format("`{}` is not a string", key));
  return found->get<std::string>();
}

std::u32string parse_characters(const json& fields, std::string_view origin) {
  const auto found = fields.find("characters");
  if (found == fields.end()) return {};
  if (!found->is_string()) refuse(origin, "`characters` is not a string");
  std::u32string characters;
  detail::Utf8Decoder decoder;  // the JSON parser has refused what is not UTF-8
  for (const char byte : found->get_ref<const std::string&>()) {
    if (decoder.feed(static_cast<std::uint8_t>(byte)) == detail::Utf8Status::complete) {
      characters.push_back(decoder.character());
    }
  }
  const auto descent = std::adjacent_find(characters.begin(), characters.end(),
                                          [](char32_t a, char32_t b) { return a >= b; });
  if (descent != characters.end()) {
    refuse(origin, fmt::format("`characters` is not strictly ascending at position {}",
                               descent - characters.begin() + 1));
  }
  return characters;
}

/// The fields must not contradict each other: a wrong dtype reads as plausible tokens.
void check_consistent(const Meta& meta, std::string_view origin) {
  if (token_type_for(meta.vocab_size) == TokenType::uint32 && meta.dtype == TokenType::uint16) {
    refuse(origin, fmt::format("a vocabulary of {} does not fit `dtype` uint16; prepare the data "
                               "as uint32",
                               meta.vocab_size));
  }
  if (meta.tokenizer == kBytesTokenizer && meta.vocab_size < 256) {
    refuse(origin,
           fmt::format("`vocab_size` is {}, but tokenizer bytes has 256 tokens", meta.vocab_size));
  }
  const bool chars = meta.tokenizer == kCharsTokenizer;
  if (!meta.characters.empty() && (!chars || meta.characters.size() != meta.vocab_size)) {
    refuse(origin,
           fmt::format("`characters` holds {} characters, but `vocab_size` is {} and "
                       "`tokenizer` is {}",
                       meta.characters.size(), meta.vocab_size, meta.tokenizer.value_or("absent")));
  }
}

}  // namespace

std::string_view name_of(TokenType type) { return type == TokenType::uint16 ? "uint16" : "uint32"; }

Meta parse_meta(std::string_view json_text, std::string_view origin) {
  const json fields = parse_json(json_text, {.origin = origin});
  if (!fields.is_object()) refuse(origin, "not a JSON object");
  Meta meta;
  meta.dtype = parse_token_type(fields, origin);
  meta.vocab_size = parse_vocab_size(fields, origin);
  if (const auto found = fields.find("tokenizer"); found != fields.end() && !found->is_null()) {
    if (!found->is_string()) refuse(origin, "`tokenizer` is not a string");
    meta.tokenizer = found->get<std::string>();
  }
  meta.tokenizer_crc32 = parse_text(fields, "tokenizer_crc32", origin);
  meta.tokenizer_rules_crc32 = parse_text(fields, "tokenizer_rules_crc32", origin);
  meta.characters = parse_characters(fields, origin);
  check_consistent(meta, origin);
  return meta;
}

Meta load_meta(const std::filesystem::path& meta_json) {
  if (!is_there(meta_json)) {
    throw Error(ErrorCode::io_error,
                fmt::format("{} does not exist; `spillway data` writes it, or write "
                            "{{\"dtype\": \"uint16\", \"vocab_size\": N}} for token files that "
                            "you already have",
                            meta_json.string()),
                ENOENT);
  }
  return parse_meta(read_text_file(meta_json, kMaxMetaBytes), meta_json.string());
}

std::string to_meta_json(const Meta& meta) {
  nlohmann::ordered_json fields;
  fields["dtype"] = name_of(meta.dtype);
  fields["vocab_size"] = meta.vocab_size;
  if (meta.tokenizer) fields["tokenizer"] = *meta.tokenizer;
  if (meta.tokenizer_crc32) fields["tokenizer_crc32"] = *meta.tokenizer_crc32;
  if (meta.tokenizer_rules_crc32) fields["tokenizer_rules_crc32"] = *meta.tokenizer_rules_crc32;
  if (!meta.characters.empty()) {
    std::string text;
    for (const char32_t character : meta.characters) detail::append_utf8(text, character);
    fields["characters"] = text;
  }
  try {
    return fields.dump(2) + "\n";
  } catch (const json::exception&) {  // JSON text is UTF-8; a path need not be
    throw Error(ErrorCode::invalid_argument,
                "the tokenizer's path is not UTF-8 and cannot be written to meta.json; rename it");
  }
}

void save_meta(const Meta& meta, const std::filesystem::path& meta_json) {
  write_file_atomically(meta_json, std::string_view(to_meta_json(meta)));
}

}  // namespace spillway::data
