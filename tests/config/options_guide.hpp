// docs/configuration.md, as the table of options says it. options_print writes it, options_test
// compares it. Test code only.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "runtime/config/options_table.hpp"

namespace spillway::config::test {

inline constexpr std::string_view kGuideHead =
    R"(# Configuration

The tables list every key of a configuration, except the keys of DeepSpeed that Spillway does not
need. This page is printed from the program's table of options
(`build/release/tests/config/options_print > docs/configuration.md`), and a test compares the two.

A default such as "0: one epoch" is a value and what it means. A window is a piece of the data with
`context` tokens. Blocks, tiles, tiers and rounds are explained by the vocabulary in
[development.md](development.md).

The column "resumed" says whether a resumed run may change the key. A key marked "recorded" is
stored in `RUN/config.json`. If a run is resumed with another value of it, the error names the key.
Such a key belongs to the mathematics or, where "layout" stands, to the layout of the state on disk.
A key of a feature that is switched off does not count: for example loss scales without fp16, or
`compute_threads` on a GPU. A resumed run may change all other keys, which are marked "free".
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
    guide += fmt::format("| `{}` | {} | {} | {} | {} |\n", option.key, option.domain.in_words(),
                         option.standard, resumed, option.meaning);
  }
  return guide;
}

}  // namespace spillway::config::test
