#include "runtime/engine/sealed_json.hpp"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "nvme_swap/format.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"

namespace spillway::engine {
namespace {

using nlohmann::json;

constexpr Bytes kLargestFile = 16_MiB;
constexpr std::size_t kMostLevels = 64;   // a model's configuration of 32, and what is around it
constexpr std::string_view kEnd = "\n}";  // of an object
constexpr std::string_view kChecksum = ",\n  \"xxh3\": \"";

std::string sealed(std::string object) {
  const std::uint64_t checksum = nvme_swap::checksum_of(std::as_bytes(std::span(object)));
  object.resize(object.size() - kEnd.size());
  return fmt::format("{}{}{:016x}\"{}\n", object, kChecksum, checksum, kEnd);
}

bool has_its_checksum(std::string_view text) {
  const std::size_t end = text.rfind(kChecksum);
  return end != std::string_view::npos &&
         text == sealed(std::string(text.substr(0, end)).append(kEnd));
}

/// Returns what "format" says in the text, if it is there.
std::optional<std::uint64_t> format_of(std::string_view text) {
  constexpr std::string_view kKey = "\n  \"format\": ";
  const std::size_t key = text.find(kKey);
  if (key == std::string_view::npos) return std::nullopt;
  const std::string_view value = text.substr(key + kKey.size());
  std::uint64_t format = 0;
  const auto read = std::from_chars(value.data(), value.data() + value.size(), format);
  return read.ec == std::errc() ? std::optional(format) : std::nullopt;
}

}  // namespace

std::string sealed_text(const std::filesystem::path& path, std::string object) {
  std::string text = sealed(std::move(object));
  check(text.size() <= kLargestFile.value(), ErrorCode::invalid_argument,
        fmt::format("{} would have {} bytes, and at most {} can be read again; give what it names "
                    "shorter names, or name less",
                    path.string(), text.size(), kLargestFile.value()));
  return text;
}

void write_sealed_json(const std::filesystem::path& path, json document) {
  document["format"] = kSealedFormat;
  document.erase("xxh3");
  write_file_atomically(path, sealed_text(path, document.dump(2)));
}

std::string read_sealed_text(const std::filesystem::path& path) {
  std::string text = read_text_file(path, kLargestFile);
  // Before the checksum, which another version may compute in another way.
  const auto format = format_of(text);
  check(!format || *format == kSealedFormat, ErrorCode::not_supported,
        fmt::format("{} has format {}; this version reads format {}", path.string(),
                    format.value_or(0), kSealedFormat));
  check(has_its_checksum(text), ErrorCode::corrupt_data,
        fmt::format("{} is not as it was written: its text does not have its checksum",
                    path.string()));
  return text;
}

json read_sealed_json(const std::filesystem::path& path) {
  json document =
      parse_json(read_sealed_text(path), {.origin = path.string(), .most_levels = kMostLevels});
  document.erase("xxh3");
  return document;
}

}  // namespace spillway::engine
