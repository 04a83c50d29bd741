#include "tools/cli/picture/page.hpp"

#include <nlohmann/json.hpp>

#include "tools/cli/picture/page_template.hpp"

namespace spillway::cli {
namespace {

void replace(std::string& text, std::string_view mark, std::string_view content) {
  text.replace(text.find(mark), mark.size(), content);
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char character : text) {
    switch (character) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += character;
    }
  }
  return result;
}

/// Text that no browser takes for the end of the element around it. JSON has "<" in strings alone.
std::string as_script(const nlohmann::ordered_json& document) {
  std::string result;
  for (const char character :
       document.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)) {
    if (character == '<') {
      result += "\\u003c";
    } else {
      result += character;
    }
  }
  return result;
}

}  // namespace

std::string html_page(std::string_view title, const nlohmann::ordered_json& document) {
  std::string page(kPageTemplate);
  // The document comes after the title in the page, and may have either mark in its texts.
  replace(page, "{{DOCUMENT}}", as_script(document));
  replace(page, "{{TITLE}}", escaped(title));
  replace(page, "{{TITLE}}", escaped(title));
  return page;
}

}  // namespace spillway::cli
