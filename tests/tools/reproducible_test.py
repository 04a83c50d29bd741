"""A build depends on its sources alone: two checkouts in two folders give the same bytes.

usage: reproducible_test.py BUILD_DIRECTORY     compiles a few sources again, each in two folders
"""
import json
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(sys.argv.pop()).resolve()
ROOT = pathlib.Path(__file__).resolve().parents[2]
# One of a module, one whose assertions name their place, one of a test.
SOURCES = ("runtime/base/error.cpp", "offload/staging_pool.cpp", "tests/offload/cuda_gpu_test.cpp")


def is_program(path):
    """Whether the build made it: some tests build programs too, with their own flags."""
    if path.relative_to(BUILD).parts[0].startswith("consumer") or path.name.endswith("_aarch64"):
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def words_of(source):
    """How a source is compiled alone, without precompiled headers."""
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    place = f" -o {pathlib.Path(source).parent}/CMakeFiles"
    words = next(shlex.split(command["command"]) for command in commands
                 if place in command["command"] and command["file"].endswith((".cpp", ".cxx")))
    kept, skip = [], False
    for word in words[:words.index("-o")]:
        if not kept and not word.startswith("-"):  # the compiler, and what starts it
            continue
        skip, dropped = word in ("-include", "-Xclang"), skip or word in ("-include", "-Xclang")
        kept += [] if dropped or word == "-Winvalid-pch" else [word]
    return kept


class Reproducible(unittest.TestCase):
    def compiled(self, compiler, source, folder):
        words = [word.replace(str(ROOT), str(folder)) for word in words_of(source)]
        build = folder / "build"
        build.mkdir(exist_ok=True)
        target = build / "compiled.o"
        done = subprocess.run([compiler, *words, "-g", "-c", folder / source, "-o", target],
                              cwd=build, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return target.read_bytes()

    def test_two_folders_give_the_same_bytes(self):
        cache = (BUILD / "CMakeCache.txt").read_text()
        compiler = next(line.split("=")[1] for line in cache.splitlines()
                        if line.startswith("CMAKE_CXX_COMPILER:"))
        with tempfile.TemporaryDirectory() as scratch:
            folders = [pathlib.Path(scratch) / name for name in ("one", "another_checkout")]
            unread = shutil.ignore_patterns("*.py", "*_corpus", "__pycache__")
            for folder in folders:
                for part in ("runtime", "offload", "tools", "tests"):
                    shutil.copytree(ROOT / part, folder / part, ignore=unread)
            for source in SOURCES:
                with self.subTest(source=source):
                    one, another = (self.compiled(compiler, source, f) for f in folders)
                    self.assertEqual(one, another)

    def test_no_program_holds_the_path_of_its_checkout(self):
        programs = [path for path in BUILD.rglob("*") if path.is_file() and not path.is_symlink()
                    and (path.stat().st_mode & 0o100 or path.suffix == ".so")
                    and "CMakeFiles" not in path.parts and is_program(path)]
        self.assertTrue(programs)
        holding = [str(path.relative_to(BUILD)) for path in programs
                   if str(ROOT).encode() in path.read_bytes()]
        self.assertEqual(holding, [])


unittest.main()
