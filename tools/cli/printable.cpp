#include "tools/cli/printable.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>

namespace spillway::cli {
namespace {

unsigned at(std::string_view text, std::size_t index) {
  return index < text.size() ? static_cast<unsigned char>(text[index]) : 0;
}

/// Controls of the second set (U+0080 to U+009F), line separators and changes of direction, which
/// are two or three bytes of UTF-8; 0 for any other character.
unsigned hidden_character(std::string_view text, std::size_t index) {
  const unsigned second = at(text, index + 1);
  const unsigned third = at(text, index + 2);
  if (at(text, index) == 0xc2 && second >= 0x80 && second <= 0x9f) return second;
  if (at(text, index) != 0xe2) return 0;
  if (second == 0x80 && third >= 0xa8 && third <= 0xae) return 0x2000 + third - 0x80;  // 2028-202E
  if (second == 0x81 && third >= 0xa6 && third <= 0xa9) return 0x2040 + third - 0x80;  // 2066-2069
  return 0;
}

}  // namespace

std::string printable_message(std::string_view message) {
  std::string shown;
  for (std::size_t i = 0; i < message.size(); ++i) {
    const unsigned byte = at(message, i);
    if (const unsigned hidden = hidden_character(message, i); hidden != 0) {
      fmt::format_to(std::back_inserter(shown), "\\u{:04x}", hidden);
      i += hidden < 0x100 ? 1 : 2;
    } else if ((byte < 0x20 && byte != '\n') || byte == 0x7f) {
      fmt::format_to(std::back_inserter(shown), "\\u{:04x}", byte);
    } else {
      shown += message[i];
    }
  }
  return shown;
}

std::string printable_name(std::string_view name) {
  const std::string quoted = nlohmann::json(std::string(name))
                                 .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return printable_message(std::string_view(quoted).substr(1, quoted.size() - 2));
}

}  // namespace spillway::cli
