#include "tools/cli/page_flag.hpp"

#include <nlohmann/json.hpp>

#include "runtime/base/file.hpp"
#include "tools/cli/console.hpp"
#include "tools/cli/picture/page.hpp"

namespace spillway::cli {

Argument PageFlag::add_to(Command command) {
  return command.add_option(
      "--html", file,
      "The answer is also written to this file, as a page with charts that needs no other file");
}

void PageFlag::write(std::string_view title, const nlohmann::ordered_json& document) const {
  if (!wanted()) return;
  write_file_atomically(file, html_page(title, document));
  tell("wrote {}\n", file.string());
}

}  // namespace spillway::cli
