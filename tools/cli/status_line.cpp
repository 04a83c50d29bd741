#include "tools/cli/status_line.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "tools/cli/console.hpp"

namespace spillway::cli {
namespace {

constexpr std::size_t kUsualColumns = 80;
constexpr std::string_view kEraseLine = "\r\x1b[2K";

}  // namespace

bool is_terminal(int descriptor) {
  const char* const kind = std::getenv("TERM");
  return ::isatty(descriptor) == 1 && (kind == nullptr || std::string_view(kind) != "dumb");
}

std::size_t terminal_columns(int descriptor) noexcept {
  struct winsize size {};
  const bool known = ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kUsualColumns;
}

bool reflows() {
  const auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
  const char* const kind = std::getenv("TERM");
  if (is_set("TMUX")) return true;
  if (is_set("XTERM_VERSION") || is_set("STY")) return false;
  return kind == nullptr || std::string_view(kind) != "linux";
}

std::string fitted(std::span<const StatusField> fields, std::size_t columns) {
  std::vector<std::size_t> by_rank(fields.size());
  for (std::size_t i = 0; i < by_rank.size(); ++i) by_rank[i] = i;
  std::ranges::stable_sort(by_rank, {}, [&](std::size_t i) { return fields[i].rank; });
  std::vector<bool> shown(fields.size());
  std::size_t used = 0;
  for (const std::size_t i : by_rank) {
    const std::size_t wanted = fields[i].text.size() + (used > 0 ? 1 : 0);
    // A less important field never takes the place of a more important one that was too long.
    if (used > 0 && used + wanted > columns) break;
    shown[i] = true;
    used += wanted;
  }
  std::string line;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (!shown[i]) continue;
    if (!line.empty()) line += ' ';
    line += fields[i].text;
  }
  line.resize(std::min(line.size(), columns));
  return line;
}

StatusLine::StatusLine() : terminal_(is_terminal(STDERR_FILENO)), reflows_(reflows()) {}

void StatusLine::finish() {
  if (open_) tell_text("\n");
  open_ = false;
}

bool StatusLine::resized() const { return open_ && terminal_columns(STDERR_FILENO) != columns_; }

void StatusLine::show(std::span<const StatusField> fields) {
  if (!terminal_) {
    tell("{}\n", fitted(fields, std::string::npos));
    return;
  }
  const std::string erased = erase();
  columns_ = terminal_columns(STDERR_FILENO);
  // The last column stays free: some terminals go on to the next line once it is written.
  const std::string line = fitted(fields, columns_ - 1);
  tell("{}{}", erased, line);
  length_ = line.size();
  open_ = true;
}

void StatusLine::note(const std::string& text) {
  clear();
  tell("{}\n", text);
}

void StatusLine::clear() {
  if (open_) tell_text(erase());
  open_ = false;
}

/// What takes the line away. In a terminal that was made narrower it takes several rows.
std::string StatusLine::erase() const {
  const std::size_t columns = terminal_columns(STDERR_FILENO);
  const bool wrapped = open_ && reflows_ && length_ > columns;
  if (!wrapped) return std::string(kEraseLine);
  return fmt::format("\r\x1b[{}A\x1b[J", (length_ - 1) / columns);
}

}  // namespace spillway::cli
