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


def opens_function(head: str) -> bool:
    """Whether a brace after `head`, in a scope that holds declarations, opens a function body."""
    head = head.strip()
    if head.startswith(","):  # the end of a constructor's initialisers: `: a_{1}, b_(2) {`
        return True
    if "(" not in head:
        return False
    outside = head
    while True:  # drop what parentheses hold, inside out
        shorter = re.sub(r"\([^()]*\)", " ", outside)
        if shorter == outside:
            break
        outside = shorter
    if SCOPE.search(outside) and not re.search(r"\)\s*(const|noexcept|override)?\s*$", head):
        return False
    return "operator" in outside or "=" not in outside


def functions(text: str) -> Iterator[Function]:
    """Every function definition, from the line of its name to its closing brace."""
    text = without_preprocessor(LITERAL_OR_COMMENT.sub(blank, text))
    head_start, depth, body_depth = 0, 0, None
    head, opened_at, initialiser_closed = "", 0, False
    for position, character in enumerate(text):
        if character == "{":
            if body_depth is None:
                part = text[head_start:position]
                continues = initialiser_closed and part.strip() == ""
                if continues or opens_function(part):
                    if not (continues or part.strip().startswith(",")):
                        head, opened_at = part, head_start + len(part) - len(part.lstrip())
                    body_depth = depth
            depth += 1
            head_start = position + 1
            initialiser_closed = False
        elif character == "}":
            depth -= 1
            if body_depth == depth:
                body_depth = None
                first = text.count("\n", 0, opened_at) + 1
                last = text.count("\n", 0, position) + 1
                name = re.search(r"([\w:~]+)\s*\(", head)
                following = text[position + 1:].lstrip()[:1]
                initialiser_closed = following in "{," and following != ""
                if not initialiser_closed:
                    yield Function(name.group(1) if name else "?", first, last - first + 1)
            head_start = position + 1
        elif character == ";" or (character == ":" and re.search(
                r"\b(public|private|protected)\s*$", text[max(0, position - 12):position])):
            if body_depth is None:
                head_start = position + 1
                initialiser_closed = False


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
