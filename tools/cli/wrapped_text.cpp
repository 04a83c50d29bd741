#include "tools/cli/wrapped_text.hpp"

#include <algorithm>

namespace spillway::cli {
namespace {

constexpr std::size_t kIndent = 4;

/// Characters of UTF-8.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; }));
}

std::string_view without_blanks(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  return text;
}

/// A line as its title or flag, with the blanks around it, and the text behind.
struct Parts {
  std::string_view head;
  std::string_view text;
};

Parts parts_of(std::string_view line) {
  const std::size_t first = std::min(line.find_first_not_of(' '), line.size());
  const std::size_t gap = line.find("  ", first);
  const std::size_t text = gap == std::string_view::npos ? gap : line.find_first_not_of(' ', gap);
  const std::size_t head = text == std::string_view::npos ? first : text;
  return {line.substr(0, head), line.substr(head)};
}

/// Adds the words of `text` to the last line of `result`, and to lines that are indented.
void add_words(std::string& result, std::size_t used, std::string_view text, std::size_t indent,
               std::size_t columns) {
  bool begins = true;
  for (text = without_blanks(text); !text.empty(); text = without_blanks(text)) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(word.size());
    const std::size_t width = width_of(word);
    if (!begins && used + 1 + width > columns) {
      result += '\n' + std::string(indent, ' ');
      used = indent;
      begins = true;
    }
    if (!begins) result += ' ';
    used += width + (begins ? 0 : 1);
    result += word;
    begins = false;
  }
}

void add_line(std::string& result, std::string_view line, std::size_t columns) {
  if (width_of(line) <= columns) {
    result += line;
    return;
  }
  const auto [head, text] = parts_of(line);
  const bool titled = !without_blanks(head).empty();
  const std::size_t used = width_of(head);
  if (used <= columns / 2) {
    result += head;
    add_words(result, used, text, titled || used >= kIndent ? used : kIndent, columns);
    return;
  }
  if (titled) {
    add_words(result, 0, head, kIndent, columns);
    result += '\n';
  }
  result += std::string(kIndent, ' ');
  add_words(result, kIndent, text, kIndent, columns);
}

}  // namespace

std::string wrapped(std::string_view text, std::size_t columns) {
  columns = std::clamp(columns, kLeastColumns, kMostColumns);
  std::string result;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    add_line(result, text.substr(0, end), columns);
    if (end == std::string_view::npos) break;
    result += '\n';
    text.remove_prefix(end + 1);
  }
  return result;
}

}  // namespace spillway::cli
