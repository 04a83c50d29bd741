// What the program says: answers on stdout, everything else on stderr.
//
// An answer that cannot be written is a failure of the command, and is found when the command ends:
// a run that trains goes on without its reader. What goes to stderr is best effort and fails
// nothing. Control thread only.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace spillway::cli {

/// Gives descriptors 0 to 2 that the caller closed something harmless to stand for, so that no file
/// of a run becomes one of them, and keeps a reader that has gone from ending the process. Call
/// first of all.
void open_standard_streams();

/// Returns the text as the reader of a descriptor gets it: wrapped at words on a terminal, else as
/// it is.
[[nodiscard]] std::string shown_on(int descriptor, std::string_view text);

/// Adds to what stdout gets.
void answer_text(std::string_view text);
template <class... Arguments>
void answer(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  answer_text(fmt::format(format, std::forward<Arguments>(arguments)...));
}

/// Writes what is still to be written; returns whether everything answered so far has arrived.
bool flush_answers();
/// Throws `Error{io_error}` unless everything that was answered has arrived.
void finish_answers();

/// Writes to stderr, in one call where the system takes it whole; lost where it cannot be written.
void tell_text(std::string_view text) noexcept;
template <class... Arguments>
void tell(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  tell_text(fmt::format(format, std::forward<Arguments>(arguments)...));
}
/// Writes a line that the user should know and that stops nothing.
void tell_note(std::string_view text);

}  // namespace spillway::cli
