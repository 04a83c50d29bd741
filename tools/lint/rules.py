"""House rules that are one pattern each, and: every source is built, every test registered."""
import pathlib
import re
from typing import Iterator, NamedTuple

from layers import public_headers
from source_tree import CXX, MODULE_ROOTS, Finding, SourceTree


class Rule(NamedTuple):
    files: str          # regular expression on the path
    exempt: str         # likewise; "" exempts nothing
    pattern: str
    message: str


RULES = (
    Rule(r".", r"^docs/third_party/", r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b",
         "unfinished work is an issue, not a comment"),
    Rule(r"\.(cpp|hpp|inl|cu|cuh)$", r"^(tools|tests)/", r"\bgetenv\s*\(",
         "environment variables are read in tools/ only"),
    Rule(r"^tools/cli/.*\.(cpp|hpp)$", r"^tools/cli/console\.",
         r"\b(fmt::print|std::printf|printf|puts|std::cout|std::cerr)\b",
         "what the program says goes through answer or tell of tools/cli/console.hpp"),
    Rule(r"\.(cpp|hpp|inl|cu|cuh)$", r"^(tools|tests)/|^runtime/base/json\.cpp$",
         r"\b[jJ]son::(parse|accept)\s*\(",
         "JSON is read by parse_json of runtime/base/json.hpp"),
    Rule(r"\.(cpp|hpp|inl|cu|cuh)$", r"^(docs|tests)/|^runtime/base/mutex\.hpp$",
         r"\bstd::(mutex|lock_guard|unique_lock|scoped_lock|condition_variable)\b",
         "what locks and waits is of runtime/base/mutex.hpp, which clang checks"),
    Rule(r"\.(cpp|hpp|inl|cu|cuh)$", "", r"#\s*include\s*<(format|bits/[^>]*)>",
         "use fmt; GCC 12 has no <format>, and bits/ is private to the library"),
    Rule(r"\.(cpp|hpp|inl|cu|cuh)$", "^tests/",
         r"#\s*include\s*<(assert|ctype|errno|fenv|float|inttypes|limits|locale|math|setjmp|signal|"
         r"stdalign|stdarg|stdbool|stddef|stdint|stdio|stdlib|string|time|uchar|wchar|wctype)\.h>",
         "C++ has a header of its own: <cstdio> for <stdio.h>"),
    Rule(r"(CMakeLists\.txt|\.cmake|CMakePresets\.json)$", "",
         r"-(ffast-math|funsafe-math-optimizations|Ofast|march=|mtune=)",
         "results must not depend on flags"),
    # A GPU's kernels have the GPU's instructions.
    Rule(r"(CMakeLists\.txt|\.cmake|CMakePresets\.json)$", "^tests/support/cuda_emulation/",
         r"-(mavx|mfma|msse)",
         "results must not depend on flags: instruction sets are function attributes"),
    Rule(r"^(?!tests/).*\.(cpp|hpp|inl|cu|cuh)$", "", r"//[/<]* Of\b",
         "a comment is a sentence or names what it describes: \"Bytes of a tile\""),
)

MAX_OPERATIONS = 12
# CUDA's runtime as it is; its calls are not of our choosing.
NOT_A_BACKEND = "offload/cuda/detail/cuda_api.hpp"
CLASS = re.compile(r"( *)(?:class|struct) (\w+)[^;]*\{$")
# A condition to be checked has no better type than bool.
BOOL_PARAMETER = re.compile(
    r"(?:[(,]|^) *(?:const )?bool (?!condition\b|operator)\w+ *(?:= *\w+)? *[,)]")
NAMESPACE = re.compile(r"namespace (?:\w+::)*(\w+) \{")
ALIAS = re.compile(r"\s*namespace (\w+) = ")
# Names and Counts may be nouns.
OPENING = re.compile(
    r"//[/!]?<? ?(?:(?:Is|Are|Says|Holds|Tells|Does)\b|(?:Names|Counts) (?!of|from|that|around)\w)|"
    r"///< +(?:is|are|says|holds|tells|names|counts|does)\b")
CITATION = re.compile(r"//.*?\b((?:\w+/)*\w+\.(?:md|hpp|cpp|inl|cuh|cu|py))\b")


def registered(tree: SourceTree, name: str) -> bool:
    """Whether one of CMake's files in a folder above names the source by the path from there."""
    path = pathlib.PurePosixPath(name)
    before = r'(^|[\s("]|\$\{CMAKE_CURRENT_(FUNCTION_LIST|LIST|SOURCE)_DIR\}/)'
    for listing, text in tree.listings.items():
        folder = pathlib.PurePosixPath(listing).parent
        if path.is_relative_to(folder):
            relative = re.escape(path.relative_to(folder).as_posix())
            if re.search(before + relative + r'(?![\w/.-])', text):
                return True
    return False


def must_be_registered(name: str) -> bool:
    path = pathlib.PurePath(name)
    if path.parts[0] not in MODULE_ROOTS or name.startswith("tests/consumer/"):
        return False  # the consumer is a project of its own
    if path.suffix in (".c", ".cpp", ".cu"):
        return True
    return path.parts[0] == "tests" and path.name.endswith("_test.py")


def check_header(tree: SourceTree, name: str) -> Iterator[Finding]:
    lines = tree.lines(name)
    if not lines or not lines[0].startswith("//"):
        yield Finding(name, 1, "a header begins with a comment: what it is, owns, which threads")
    if "#pragma once" not in lines:
        yield Finding(name, 1, "a header has #pragma once")


def check_interfaces(tree: SourceTree, name: str) -> Iterator[Finding]:
    """No class has too many virtual operations."""
    indent, interface, count = "", "", 0
    for number, line in enumerate(tree.lines(name), 1):
        if match := CLASS.match(line):
            indent, interface, count = match.group(1), match.group(2), 0
        elif line.startswith(indent + "};"):
            interface = ""
        elif interface and re.search(r"\bvirtual\b(?! ~)", line):
            count += 1
            if count == MAX_OPERATIONS + 1 and name != NOT_A_BACKEND:
                yield Finding(name, number, f"{interface} has more than {MAX_OPERATIONS} virtual "
                                            "functions: compose the rest of them")


def check_aliases(tree: SourceTree, name: str) -> Iterator[Finding]:
    lines = tree.lines(name)
    for number, line in enumerate(lines, 1):
        alias = ALIAS.match(line)
        if alias and not any(re.search(rf"\b{alias.group(1)}::", other) for other in lines):
            yield Finding(name, number, f"nothing uses the alias {alias.group(1)}")


def check_test_namespace(tree: SourceTree, name: str) -> Iterator[Finding]:
    """A unity build compiles several tests as one source: each has its helpers for itself."""
    stem = pathlib.PurePath(name).stem
    opened = [(number, match.group(1)) for number, line in enumerate(tree.lines(name), 1)
              if (match := NAMESPACE.match(line))]
    for number, last in opened or [(1, "")]:
        if last != stem:
            yield Finding(name, number, f"the namespace of a test ends in ::{stem}")


def check_openings(tree: SourceTree, name: str) -> Iterator[Finding]:
    """The first line of a comment; the next ones may begin with any word of a sentence."""
    before = ""
    for number, line in enumerate(tree.lines(name), 1):
        goes_on = line.strip().startswith("//") and "//" in before
        match = OPENING.search(line)
        if match and not goes_on and '"' not in line[:match.start()]:
            yield Finding(name, number, "what is declared is no subject of its comment: \"Ratio of "
                                        "...\", not \"Is the ratio of ...\"")
        before = line


def check_citations(tree: SourceTree, name: str, files: list[str]) -> Iterator[Finding]:
    for number, line in enumerate(tree.lines(name), 1):
        match = CITATION.search(line)
        if match and not any(("/" + file).endswith("/" + match.group(1)) for file in files):
            yield Finding(name, number, f"{match.group(1)} is no file of this repository")


def check(tree: SourceTree) -> Iterator[Finding]:
    files = list(tree.files())
    public = public_headers(tree)
    for name in files:
        if pathlib.PurePath(name).suffix in CXX:
            yield from check_openings(tree, name)
        if pathlib.PurePath(name).suffix in CXX and not name.startswith("tests/"):
            yield from check_interfaces(tree, name)
            yield from check_aliases(tree, name)
            yield from check_citations(tree, name, files)
        if name in public or re.match(r"runtime/engine/.*\.hpp$", name):
            for number, line in enumerate(tree.lines(name), 1):
                if BOOL_PARAMETER.search(line.split("//")[0]):
                    yield Finding(name, number, "an installed header, or one of the engine, "
                                                "takes an enum class, no bool")
        if must_be_registered(name) and not registered(tree, name):
            yield Finding(name, 1, "nothing that CMake reads lists this source")
        if re.match(r"tests/.*_test\.cpp$", name):
            yield from check_test_namespace(tree, name)
        if pathlib.PurePath(name).suffix in (".hpp", ".cuh"):
            yield from check_header(tree, name)
        rules = [rule for rule in RULES if re.search(rule.files, name)
                 and not (rule.exempt and re.search(rule.exempt, name))]
        if pathlib.PurePath(name).suffix in CXX | {".py", ".cmake", ".json", ".md", ".txt", ""}:
            for number, line in enumerate(tree.lines(name), 1):
                for rule in rules:
                    if re.search(rule.pattern, line):
                        yield Finding(name, number, rule.message)
