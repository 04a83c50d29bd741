#include "runtime/engine/run/sealed_json.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>

#include "nvme_swap/format.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"

namespace spillway::engine {
namespace {

using nlohmann::json;

constexpr Bytes kLargestFile = 16_MiB;
constexpr std::size_t kMostLevels = 64;  // a model's configuration of 32, and what is around it
constexpr int kFormat = 3;               // 1 had no checksum, 2 no run id
constexpr const char* kChecksum = "xxh3";

/// The text of the file: keys in alphabetical order, two spaces a level.
std::string sealed(json document) {
  document.erase(kChecksum);
  const std::string text = document.dump(2);
  document[kChecksum] =
      fmt::format("{:016x}", nvme_swap::checksum_of(std::as_bytes(std::span(text))));
  return document.dump(2) + "\n";
}

}  // namespace

std::string sealed_text(const std::filesystem::path& path, json document) {
  document["format"] = kFormat;
  std::string text = sealed(std::move(document));
  check(text.size() <= kLargestFile.value(), ErrorCode::invalid_argument,
        fmt::format("{} would have {} bytes, and at most {} can be read again; give what it names "
                    "shorter names, or name less",
                    path.string(), text.size(), kLargestFile.value()));
  return text;
}

void write_sealed_json(const std::filesystem::path& path, json document) {
  write_file_atomically(path, sealed_text(path, std::move(document)));
}

json read_sealed_json(const std::filesystem::path& path) {
  const std::string text = read_text_file(path, kLargestFile);
  json document = parse_json(text, {.origin = path.string(), .most_levels = kMostLevels});
  check(document.is_object(), ErrorCode::corrupt_data,
        fmt::format("{} is not a JSON object", path.string()));
  // Before the checksum, which another version may compute in another way.
  const auto format = document.find("format");
  check(format == document.end() || !format->is_number_integer() || *format == kFormat,
        ErrorCode::not_supported,
        fmt::format("{} has format {}; this version reads format {}", path.string(),
                    format == document.end() ? "" : format->dump(), kFormat));
  check(sealed(document) == text, ErrorCode::corrupt_data,
        fmt::format("{} is not as it was written: its text does not have its checksum",
                    path.string()));
  document.erase(kChecksum);
  return document;
}

}  // namespace spillway::engine
