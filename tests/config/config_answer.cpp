// config_answer < configurations, one a line: for each a line of JSON, what the parser answers:
// {"options": every path of the table} first, then {"notes": [...]} or {"error": "..."}. For the
// peer tests; it is not installed.
#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/base/error.hpp"
#include "runtime/config/options_table.hpp"

int main() {
  using nlohmann::json;
  using namespace spillway::config;
  json table = json::array();
  for (const Option& option : options_table()) table.push_back(option.path());
  fmt::print("{}\n", json{{"options", table}}.dump());
  for (std::string line; std::getline(std::cin, line);) {
    json answer;
    try {
      answer["notes"] = parse_train_config(line, "config").notes;
    } catch (const spillway::Error& error) {
      answer["error"] = error.what();
    }
    fmt::print("{}\n", answer.dump());
  }
}
