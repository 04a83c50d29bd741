// --html FILE: the answer of a command as a page as well.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "tools/cli/command_line.hpp"

namespace spillway::cli {

struct PageFlag {
  std::filesystem::path file;  ///< empty: no page

  Argument add_to(Command command);
  [[nodiscard]] bool wanted() const { return !file.empty(); }
  /// Writes the page, if one is wanted, and tells where it is. Throws `Error{io_error}`.
  void write(std::string_view title, const nlohmann::ordered_json& document) const;
};

}  // namespace spillway::cli
