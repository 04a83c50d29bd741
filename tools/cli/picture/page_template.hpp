// page.html with its style and script, which the build makes part of the program.
#pragma once

#include <string_view>

namespace spillway::cli {

extern const std::string_view kPageTemplate;

}  // namespace spillway::cli
