// options_print: docs/configuration.md on stdout. A tool of the tests; it is not installed.
#include <fmt/format.h>

#include "tests/config/options_guide.hpp"

int main() { fmt::print("{}", spillway::config::test::options_guide()); }
