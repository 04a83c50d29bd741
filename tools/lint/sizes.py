"""Files of at most 400 lines, lines of at most 100 columns, functions of at most 70 lines."""
import pathlib
import re
from typing import Iterator, NamedTuple

from source_tree import CXX, Finding, SourceTree

MAX_FILE_LINES = 400
MAX_COLUMNS = 100
MAX_FUNCTION_LINES = 70

CODE = CXX | {".py", ".cmake", ".sh"}

LITERAL_OR_COMMENT = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)"'
    r"|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.DOTALL)
# A digit separator is no quote: 1'000'000.
SCOPE = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b")


class Function(NamedTuple):
    name: str
    first_line: int
    lines: int


def is_code(tree: SourceTree, name: str) -> bool:
    path = pathlib.PurePath(name)
    if path.suffix in CODE or path.name == "CMakeLists.txt":
        return True
    return not path.suffix and tree.text(name).startswith("#!")


def blank(match: re.Match) -> str:
    """Literals and comments become spaces, so that their braces do not count; lines stay."""
    return re.sub(r"[^\n]", " ", match.group(0))


def without_preprocessor(text: str) -> str:
    return re.sub(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", blank, text, flags=re.MULTILINE)


def kind_of_brace(head: str) -> str:
    """What a brace after `head`, among declarations, opens: a "function", "scope" or "value"."""
    head = head.strip()
    outside = head  # without what parentheses hold
    while (shorter := re.sub(r"\([^()]*\)", " ", outside)) != outside:
        outside = shorter
    parameters_last = re.search(r"\)\s*(const|noexcept|override|\s)*$", head)
    if SCOPE.search(outside) and not parameters_last:
        return "scope"
    if "(" in head and ("operator" in outside or "=" not in outside):
        return "function"
    return "value"


class FunctionFinder:
    """Walks over the braces of a source text from which literals and comments are gone."""

    def __init__(self, text: str):
        self.text = text
        self.kinds: list[str] = []          # of the braces that are open
        self.part_start = 0                 # where the text before the next brace begins
        self.function_start = 0             # of the function that is open, where its name's part is
        self.in_initialisers = False        # of a constructor: `: a_{1}, b_{2} {`

    def find(self) -> Iterator[Function]:
        for match in re.finditer(r"[{};]|\b(public|private|protected)\s*:", self.text):
            position, token = match.start(), match.group(0)
            if token == "{":
                self.open(position)
            elif token == "}":
                yield from self.close(position)
            elif "function" not in self.kinds:
                self.in_initialisers = False
                self.part_start = match.end()

    def open(self, position: int) -> None:
        kind = "value"
        if all(outer == "scope" for outer in self.kinds):
            part = self.text[self.part_start:position]
            if self.in_initialisers:
                kind = "function"
            else:
                kind = kind_of_brace(part)
                self.function_start = self.part_start + len(part) - len(part.lstrip())
        self.kinds.append(kind)
        self.part_start = position + 1

    def close(self, position: int) -> Iterator[Function]:
        kind = self.kinds.pop() if self.kinds else "value"
        self.part_start = position + 1
        if kind != "function":
            return
        # What looked like a body and is followed by these was an initialiser of a constructor.
        following = self.text[position + 1:].lstrip()[:1]
        self.in_initialisers = following in ("{", ",")
        if not self.in_initialisers:
            name = re.search(r"(operator[^\s\w(]+|[\w:~]+)\s*\(", self.text[self.function_start:])
            first = self.text.count("\n", 0, self.function_start) + 1
            last = self.text.count("\n", 0, position) + 1
            yield Function(name.group(1) if name else "?", first, last - first + 1)


def functions(text: str) -> Iterator[Function]:
    """Every function definition, from the line of its name to its closing brace."""
    yield from FunctionFinder(without_preprocessor(LITERAL_OR_COMMENT.sub(blank, text))).find()


def check(tree: SourceTree) -> Iterator[Finding]:
    for name in tree.files():
        if not is_code(tree, name):
            continue
        lines = tree.lines(name)
        if len(lines) > MAX_FILE_LINES:
            yield Finding(name, MAX_FILE_LINES + 1,
                          f"{len(lines)} lines; a file has at most {MAX_FILE_LINES}")
        for number, line in enumerate(lines, 1):
            if len(line) > MAX_COLUMNS:
                yield Finding(name, number,
                              f"{len(line)} columns; a line has at most {MAX_COLUMNS}")
        if pathlib.PurePath(name).suffix not in CXX:
            continue
        for function in functions(tree.text(name)):
            if function.lines > MAX_FUNCTION_LINES:
                yield Finding(name, function.first_line,
                              f"{function.name} has {function.lines} lines; a function has at most "
                              f"{MAX_FUNCTION_LINES}")
