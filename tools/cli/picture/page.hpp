// A document of `spillway plan` or `spillway report` as one page that needs nothing else: no
// network, no other file.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace spillway::cli {

/// Returns an HTML page that shows the entries of the document that are there and not null: `run`,
/// `plan`, `picture`, `measured` and `history`.
[[nodiscard]] std::string html_page(std::string_view title, const nlohmann::ordered_json& document);

}  // namespace spillway::cli
