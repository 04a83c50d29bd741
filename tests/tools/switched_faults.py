"""Faults of random_faults.py that are built together: each line has its code and that with the
fault, and a number in the environment says which of all faults a program has. The same programs
write down which of these lines they reach."""
import os
import re

from random_faults import DEPTH, FILL, STATEMENT, code_of, end_of, parts, stands_alone

HEADER_NAME = "planted_switch.hpp"
# What runs before a source has made these finds zeros: it has no fault and is not counted.
HEADER = """#pragma once
#pragma GCC system_header
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cstdlib>
#include <type_traits>
namespace {
[[maybe_unused]] const int spillway_planted_number = [] {
  const char* const text = std::getenv("SPILLWAY_PLANTED");
  return text == nullptr ? 0 : std::atoi(text);
}();
[[maybe_unused]] volatile char* const spillway_planted_reached = []() -> volatile char* {
  const char* const path = std::getenv("PLANTED_REACHED");
  const int file = path == nullptr ? -1 : ::open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  const auto size = static_cast<std::size_t>(::lseek(file, 0, SEEK_END));
  void* const bytes = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  return bytes == MAP_FAILED ? nullptr : static_cast<volatile char*>(bytes);
}();
[[maybe_unused]] bool spillway_planted_late(int number) {
  if (spillway_planted_reached != nullptr) spillway_planted_reached[number] = 1;
  return spillway_planted_number == number;
}
[[maybe_unused]] constexpr bool spillway_planted(int number) {
  return !std::is_constant_evaluated() && spillway_planted_late(number);
}
}  // namespace
"""
CONSTANT = re.compile(r"(\s*)(static |inline )?constexpr "
                      r"([\w:<>, ]+ \w+(?: = [^;]*|\{[^;]*\});.*)$")
FIXED = re.compile(r"\b(?:constexpr|consteval|static_assert|template|using|enum|case)\b")
LEFT = re.compile(r"(?:,| && | \|\| | \? | : | [-+*/%&|^]?= |\breturn |;)$")
RIGHT = re.compile(r",| && | \|\| | \? | : | [-+*/%&|^]?= |;")
LOGICAL = re.compile(r" .*(?:&&|\|\|).* ")
LOOSE = re.compile(r" .*(?:&&|\|\|| \? ).* ")  # binds no tighter than these
JOINED = re.compile(r"(?:[({\[,;?:=]|&&|\|\||\breturn)$")  # the end of a line before a part
LABEL = re.compile(r"\s*(?:case [\w:]+|default): (?=\S)")
HEAD = re.compile(r"\b(?:else )?(?:if|while) ?\(")


def switch(number):
    return f"::spillway_planted({number})"


def changed(old, new):
    """Begin and end of what changes in a line."""
    begin = len(os.path.commonprefix([old, new]))
    end = len(os.path.commonprefix([old[begin:][::-1], new[begin:][::-1]]))
    return begin, len(old) - end


def part_begin(code, begin, before, separators):
    depth = 0
    for index in range(begin - 1, -1, -1):
        depth -= DEPTH.get(code[index], 0)
        if depth < 0:
            return index + 1
        found = LEFT.search(code, 0, index + 1) if depth == 0 else None
        if found and (separators or not LOGICAL.fullmatch(found[0])):
            return index + 1
    return len(code) - len(code.lstrip()) if JOINED.search(before) else None


def part_end(code, end, after, separators):
    depth = 0
    for index in range(end, len(code)):
        depth += DEPTH.get(code[index], 0)
        if depth < 0:
            return index
        found = RIGHT.match(code, index) if depth == 0 else None
        if found and (separators or not LOGICAL.fullmatch(found[0])):
            return index
    return len(code.rstrip()) if after.startswith(("?", ":", ")", "}", "]")) else None


def opening(code, index):
    """The bracket that encloses the index; none: it is on another line."""
    depth = 0
    for before in range(index - 1, -1, -1):
        depth -= DEPTH.get(code[before], 0)
        if depth < 0:
            return before
    return None


def is_statement(code, before):
    stripped = code.strip()
    return (stands_alone(code, before) and stripped.count("{") == stripped.count("}")
            and (STATEMENT.match(stripped) is not None or stripped.startswith("return ")))


def switched_head(number, old, new, code, begin, end):
    """The line of an if or a while whose condition has the fault."""
    for head in HEAD.finditer(code):
        stop = end_of(code, head.end() - 1)
        if stop is None or not head.end() <= begin <= end <= stop or re.search(
                r";| = ", code[head.end():stop]):
            continue
        was = old[head.end():stop]
        becomes = new[head.end():stop + len(new) - len(old)]
        return (f"{old[:head.end()]}{switch(number)} ? bool({becomes}) : bool({was})"
                f"{old[stop:]}")
    return None


def switched(number, fault, code, before, after):
    """The line with and without its fault; none: only a build of its own can have it. `code` is the
    line without its texts, `before` and `after` are the lines of code around it."""
    old, new = fault.old, fault.new
    if constant := CONSTANT.match(code):  # which may be one at run time too
        kind = {"static ": "static inline ", "inline ": "inline ", None: ""}[constant[2]]
        rest = constant.start(3)
        start = f"{constant[1]}{kind}const "
        variable = fault._replace(old=start + old[rest:], new=start + new[rest:])
        line = switched(number, variable, start + code[rest:], before, after)
        # What a compiler could compute would be computed, without a fault.
        return line and line.replace("::spillway_planted(", "::spillway_planted_late(")
    if label := LABEL.match(code):
        rest = label.end()
        if old[:rest] != new[:rest]:
            return None
        line = switched(number, fault._replace(old=old[rest:], new=new[rest:]), code[rest:], ":",
                        after)
        return None if line is None else old[:rest] + line
    if FIXED.search(code):
        return None
    if is_statement(code, before):
        indent = old[:len(old) - len(old.lstrip())]
        return f"{indent}{{ if ({switch(number)}) {{ {new.strip()} }} else {{ {old.strip()} }} }}"
    begin, end = changed(old, new)
    head = switched_head(number, old, new, code, begin, end)
    if head:
        return head
    if re.search(r"[-+*/%&|^]=", code[max(begin - 1, 0):end + 1]):
        return None
    separators = not LOOSE.search(f" {old[begin:end]} ")
    while True:
        start = part_begin(code, begin, before, separators)
        stop = part_end(code, end, after, separators)
        if start is None or stop is None:
            return None
        if len(parts(code, start, stop)) == 1:
            break
        begin = opening(code, start)  # arguments in another order: the whole call
        end = None if begin is None else end_of(code, begin)
        if end is None:
            return None
        end += 1
    start += len(old[start:begin]) - len(old[start:begin].lstrip())
    becomes = new[start:stop + len(new) - len(old)]
    return f"{old[:start]}({switch(number)} ? ({becomes}) : ({old[start:stop]})){old[stop:]}"


class SwitchedFile:
    """A source with the faults that are built together; `faults` are those by their numbers."""

    def __init__(self, text, faults, header):
        self.original = text
        self.lines = text.split("\n")
        self.code = code_of(text).split("\n")
        self.header = header
        self.faults = faults
        self.switched = {}  # by number: the line
        for number, fault in faults.items():
            line = switched(number, fault, self.code[fault.line], self.before(fault.line),
                            self.near(range(fault.line + 1, len(self.code))))
            if line is not None:
                self.switched[number] = line
        self.probed = {index for index, line in enumerate(self.code)
                       if is_statement(line, self.before(index)) and not FIXED.search(line)}

    def near(self, indices):
        stripped = (self.code[index].replace(FILL, "").strip() for index in indices)
        return next(filter(None, stripped), "")

    def before(self, line):
        return self.near(range(line - 1, -1, -1))

    @property
    def probe(self):
        """The number of the first fault that is built alone, by which the file tells that it is
        reached; none: all are built together."""
        return min(set(self.faults) - set(self.switched), default=None)

    def drop(self, line):
        """Gives up what a compiler has refused at a line, from 0, or first the probes and then all
        of the file; whether there was something."""
        if line is None:
            given_up, self.probed = (self.probe is not None and self.probed), set()
            if not given_up:
                given_up, self.switched = self.switched, {}
            return bool(given_up)
        numbers = [n for n in self.switched if self.faults[n].line == line]
        for number in numbers:
            del self.switched[number]
        probed = self.probe is not None and line in self.probed
        self.probed -= {line}
        return bool(numbers) or probed

    def is_code(self, number):
        """Whether a fault is in a line of a function, as far as one can see from the line."""
        index = self.faults[number].line
        return is_statement(self.code[index], self.before(index)) or bool(
            HEAD.search(self.code[index]))

    def telling(self):
        """The numbers that tell that the file is reached."""
        return set(self.switched) | ({self.probe} if self.probe and self.probed else set())

    def text_with(self, fault, line):
        """The text with a line in place of a fault's."""
        lines = self.text().split("\n")
        lines[fault.line + 2] = line
        return "\n".join(lines)

    def text(self):
        lines = list(self.lines)
        if self.probe is not None:
            for index in self.probed:
                lines[index] = f"{{ (void){switch(self.probe)}; {lines[index].strip()} }}"
        for number, line in self.switched.items():
            lines[self.faults[number].line] = line
        return f'#include "{self.header}"\n#line 1\n' + "\n".join(lines)
