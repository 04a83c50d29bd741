"""A program in a pseudo-terminal, and the screen that a user would see of it."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

CONTROL = re.compile(r"\x1b\[([0-9;?]*)([@-~])")


class Screen:
    """As much of a terminal as the program's lines need: rows that wrap at the last column,
    carriage return, line feed, going up, and the erasing of a line and of what is below."""

    def __init__(self, columns):
        self.columns = columns
        self.rows = [""]
        self.row = 0
        self.column = 0
        self.wrapped = []   # the beginning of each row that did not fit
        self.frames = []    # every text that was rewritten in place
        self.unread = ""

    def feed(self, text):
        text = self.unread + text
        self.unread = ""
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                match = CONTROL.match(text, at)
                if match is None and len(text) - at < 16:
                    self.unread = text[at:]
                    return
                self.control(match)
                at = match.end()
            else:
                self.character(text[at])
                at += 1

    def resize(self, columns, reflows):
        """Lines that are longer now are broken, as in most terminals, or cut off, as in xterm."""
        before, self.rows, at = self.rows, [], self.row
        self.columns = columns
        for number, text in enumerate(before):
            first = len(self.rows)
            parts = [text[i:i + columns] for i in range(0, len(text), columns)] or [""]
            self.rows += parts if reflows else parts[:1]
            if number == at:
                self.row = first + (min(self.column // columns, len(parts) - 1) if reflows else 0)
                self.column = min(self.column - (self.row - first) * columns, columns)

    def control(self, match):
        if match is not None and match.group(2) == "m":
            return  # a colour
        if match is not None and match.group(2) == "A":
            assert self.row >= int(match.group(1)), "above the screen"
            self.row -= int(match.group(1))
            return
        if match is None or match.group(0) not in ("\x1b[2K", "\x1b[K", "\x1b[J"):
            raise AssertionError(f"this screen does not know {match}")
        if match.group(2) == "J":
            self.frames.append("".join(self.rows[self.row:]))
            self.rows[self.row:] = [self.rows[self.row][:self.column]]
            return
        if self.rows[self.row]:
            self.frames.append(self.rows[self.row])
        self.rows[self.row] = "" if match.group(1) == "2" else self.rows[self.row][:self.column]

    def next_row(self, text):
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append(text)

    def character(self, one):
        if one == "\r":
            self.column = 0
        elif one == "\n":
            self.next_row(" " * self.column)
        elif one < " ":
            raise AssertionError(f"this screen does not know {one!r}")
        else:
            if self.column == self.columns:
                self.wrapped.append(self.rows[self.row])
                self.next_row("")
                self.column = 0
            row = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = row[:self.column] + one + row[self.column + 1:]
            self.column += 1


class Terminal:
    """`command` as the foreground job of a terminal of its own."""

    def __init__(self, command, columns, folder, **environment):
        self.screen = Screen(columns)
        self.text = ""
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            try:
                self.set_size(0, columns)
                os.chdir(folder)
                os.environ.pop("XTERM_VERSION", None)
                os.environ |= {"TERM": "xterm", **environment}
                os.execv(command[0], command)
            finally:
                os._exit(127)

    @staticmethod
    def set_size(descriptor, columns):
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def resize(self, columns, reflows=True):
        """Between two lines of the program, which stands still meanwhile."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)
        while select.select([self.descriptor], [], [], 0.1)[0]:
            self.read(0)
        self.set_size(self.descriptor, columns)
        self.screen.resize(columns, reflows)
        os.kill(self.pid, signal.SIGCONT)

    def type(self, keys):
        os.write(self.descriptor, keys)

    def read(self, seconds) -> bool:
        """Takes what is there; False once the program has closed the terminal."""
        ready, _, _ = select.select([self.descriptor], [], [], seconds)
        if not ready:
            return True
        try:
            data = os.read(self.descriptor, 65536)
        except OSError:  # how Linux says that the other side is closed
            return False
        text = data.decode(errors="replace")
        self.text += text
        self.screen.feed(text)
        return bool(data)

    def read_until(self, condition, seconds):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline or not self.read(1):
                raise AssertionError(f"it never came to that; the terminal shows:\n{self.text}")

    def finish(self, seconds) -> int:
        """The exit code; negative: the signal that ended it."""
        deadline = time.monotonic() + seconds
        while self.read(1):
            if time.monotonic() > deadline:
                raise AssertionError(f"it does not end; the terminal shows:\n{self.text}")
        _, status = os.waitpid(self.pid, 0)
        self.pid = -1
        return os.waitstatus_to_exitcode(status)

    def close(self):
        os.close(self.descriptor)
        if self.pid > 0:
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
