#include "tools/cli/console.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "runtime/base/error.hpp"
#include "tools/cli/status_line.hpp"
#include "tools/cli/wrapped_text.hpp"

namespace spillway::cli {
namespace {

/// errno of the first failure of stdout, which is process-wide by nature; 0 while there is none.
int first_failure = 0;

void remember_failure() {
  if (first_failure == 0) first_failure = errno != 0 ? errno : EIO;
}

}  // namespace

void open_standard_streams() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    // The wrong way round: whoever reads a closed stdin or answers on a closed stdout is told. The
    // lowest free number is this one. Without it nobody could be told why the program ends.
    const int stand_in = ::open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    if (stand_in != descriptor) std::_Exit(EXIT_FAILURE);
  }
  // A handler and not SIG_IGN, which the programs that benchmarks start would inherit.
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGPIPE, &action, nullptr);
  ::sigaction(SIGXFSZ, &action, nullptr);  // a write beyond the limit of a file says EFBIG
}

std::string shown_on(int descriptor, std::string_view text) {
  return is_terminal(descriptor) ? wrapped(text, terminal_columns(descriptor)) : std::string(text);
}

void answer_text(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) remember_failure();
}

bool flush_answers() {
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) remember_failure();
  return first_failure == 0;
}

void finish_answers() {
  if (!flush_answers()) throw_errno(first_failure, "cannot write the answer to standard output");
}

void tell_text(std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void tell_note(std::string_view text) {
  tell_text(shown_on(STDERR_FILENO, fmt::format("note: {}\n", text)));
}

}  // namespace spillway::cli
