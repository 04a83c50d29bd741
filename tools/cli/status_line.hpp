// StatusLine: one line on stderr that is rewritten in place on a terminal, in what width it has.
//
// Control thread only. Best effort: a line that cannot be written is lost.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace spillway::cli {

/// Whether lines of `descriptor` can be rewritten: a terminal, and not one that says it is dumb.
[[nodiscard]] bool is_terminal(int descriptor);
/// Returns columns of the terminal behind `descriptor` now; 80 where it does not say. Safe in a
/// handler of a signal: ioctl is a plain system call.
[[nodiscard]] std::size_t terminal_columns(int descriptor) noexcept;

/// Whether a terminal that is made narrower breaks the lines that it shows. Those that cut them off
/// are known by their environment: xterm, GNU Screen and Linux' own.
[[nodiscard]] bool reflows();

/// A part of a line. Of those that do not fit together the least important is left out; 0 is the
/// most important.
struct StatusField {
  std::string text;
  int rank = 0;
};

/// Returns the fields that fit into `columns`, in their order, with a space between two; the most
/// important alone is cut.
[[nodiscard]] std::string fitted(std::span<const StatusField> fields, std::size_t columns);

class StatusLine {
 public:
  StatusLine();
  ~StatusLine() { finish(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  [[nodiscard]] bool on_terminal() const { return terminal_; }
  /// Whether the terminal has another width than that of the last line.
  [[nodiscard]] bool resized() const;
  /// Shows the fields: on a terminal in the place of the line before, as wide as the terminal at
  /// most; elsewhere a line of its own, whole.
  void show(std::span<const StatusField> fields);
  /// Writes a line that stays, above the one that is rewritten.
  void note(const std::string& text);
  /// Leaves the line standing; what comes next begins below it.
  void finish();
  /// Takes the line away.
  void clear();

 private:
  [[nodiscard]] std::string erase() const;

  const bool terminal_;
  const bool reflows_;
  bool open_ = false;  // the cursor stands behind a line
  std::size_t columns_ = 0;
  std::size_t length_ = 0;  // of the last line
};

}  // namespace spillway::cli
