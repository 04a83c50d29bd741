"""Files of at most 400 lines, lines of at most 100 columns."""
import pathlib
from typing import Iterator

from source_tree import CXX, Finding, SourceTree

MAX_FILE_LINES = 400
MAX_COLUMNS = 100

CODE = CXX | {".py", ".cmake", ".sh"}


def is_code(tree: SourceTree, name: str) -> bool:
    path = pathlib.PurePath(name)
    if path.suffix in CODE or path.name == "CMakeLists.txt":
        return True
    return not path.suffix and tree.text(name).startswith("#!")


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
