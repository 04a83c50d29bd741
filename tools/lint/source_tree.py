"""The files that the checks read, and what a finding looks like."""
import functools
import pathlib
import re
import subprocess
from typing import Iterator, NamedTuple

CXX = {".c", ".h", ".cpp", ".hpp", ".inl", ".cu", ".cuh"}
MODULE_ROOTS = ("runtime", "offload", "cpu_adam", "nvme_swap", "comm", "tools", "tests")


class Finding(NamedTuple):
    """One violated rule; prints as compilers do."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


class SourceTree:
    """A checkout. Paths are relative to its root and use forward slashes."""

    def __init__(self, root: pathlib.Path):
        self.root = root

    def files(self) -> Iterator[str]:
        """Files that git tracks or would track; in a folder without git, all of them."""
        listing = subprocess.run(
            ["git", "-C", str(self.root), "ls-files", "-co", "--exclude-standard", "-z"],
            capture_output=True, check=False)
        if listing.returncode == 0:
            names = listing.stdout.decode().split("\0")
            yield from sorted(name for name in names if name and (self.root / name).is_file())
            return
        for path in sorted(self.root.rglob("*")):
            if path.is_file():
                yield path.relative_to(self.root).as_posix()

    def cxx_files(self) -> Iterator[str]:
        for name in self.files():
            if name.split("/")[0] in MODULE_ROOTS and pathlib.PurePath(name).suffix in CXX:
                yield name

    def text(self, name: str) -> str:
        return (self.root / name).read_text(encoding="utf-8", errors="replace")

    def lines(self, name: str) -> list[str]:
        return self.text(name).splitlines()

    @functools.cached_property
    def listings(self) -> dict[str, str]:
        """CMake's files that the root CMakeLists.txt reaches, by path, without their comments."""
        found: dict[str, str] = {}
        waiting = ["CMakeLists.txt"]
        while waiting:
            name = waiting.pop()
            if name in found or not self.exists(name):
                continue
            found[name] = text = re.sub(r"#[^\n]*", "", self.text(name))
            folder = pathlib.PurePosixPath(name).parent
            for command, argument in re.findall(r"\b(add_subdirectory|include)\((\S+?)\)", text):
                suffix = "/CMakeLists.txt" if command == "add_subdirectory" else ""
                waiting.append((folder / (argument + suffix)).as_posix())
        return found

    def exists(self, name: str) -> bool:
        return (self.root / name).is_file()
