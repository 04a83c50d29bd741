// docs/configuration.md, as the table of options says it. options_print writes it, options_test
// compares it. Test code only.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "runtime/engine/options_table.hpp"

namespace spillway::engine::test {

inline constexpr std::string_view kGuideHead =
    R"(# Configuration

Every key that a configuration may say beside those that DeepSpeed has and Spillway does not need.
This page is printed from the program's table of options
(`build/release/tests/engine/options_print > docs/configuration.md`), and a test compares the two.

A key marked "recorded" stands in `RUN/config.json`, and a run that is resumed with another value is
refused by name: it belongs to the mathematics or, where "layout" stands, to how state lies on disk.
A key of something that is switched off (loss scales without fp16, `compute_threads` on a GPU) does
not count. All others are free at every start.
)";

inline std::string options_guide() {
  std::string guide(kGuideHead);
  std::string_view section = "?";
  for (const Option& option : options_table()) {
    if (option.section != section) {
      section = option.section;
      guide += section.empty() ? "\n## At the top\n" : fmt::format("\n## `{}`\n", section);
      guide += "\n| key | value | default | resumed | meaning |\n|---|---|---|---|---|\n";
    }
    const char* const resumed = option.part == Part::free     ? "free"
                                : option.part == Part::layout ? "recorded (layout)"
                                                              : "recorded";
    guide += fmt::format("| `{}` | {} | {} | {} | {} |\n", option.key, option.type, option.standard,
                         resumed, option.meaning);
  }
  return guide;
}

}  // namespace spillway::engine::test
