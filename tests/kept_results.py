"""Results of tests that passed, kept by the content of everything that a test depends on.

The key of a test is a hash of its command, of the files that the command and its inputs name, of
the libraries of this build that its program loads, of the variables that steer tests, and of the
machine: processor, kernel and packages. Paths of the checkout are no part of it.
"""
import functools
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
STEERING = re.compile(r"^(SPILLWAY_|OMP_|GOMP_|ASAN_|UBSAN_|LSAN_|TSAN_|OMPI_|PRTE_|PYTHON)")
OWN = ("gtest_report.py", "kept_results.py", "lsan.supp", "run_python", "run_test", "tsan.supp")
COMPILED = (".c", ".cpp", ".cu", ".hpp", ".inl", ".pyc")
NOT_STEERING = {"SPILLWAY_KEPT_RESULTS", "SPILLWAY_TEST_SHUFFLE"}


def folder() -> pathlib.Path | None:
    named = os.environ.get("SPILLWAY_KEPT_RESULTS")
    return pathlib.Path(named) if named else None


@functools.cache
def of_file(path: str) -> bytes:
    return hashlib.sha256(pathlib.Path(path).read_bytes()).digest()


def files_below(path: pathlib.Path) -> list[pathlib.Path]:
    """A file, or those of a folder; sources of programs count as the programs that they make."""
    if path.is_file():
        return [path]
    return sorted(p for p in path.rglob("*") if p.is_file() and p.name != "CMakeLists.txt"
                  and p.suffix not in COMPILED)


def own_libraries(program: str, build: pathlib.Path) -> list[str]:
    """Shared libraries of the build that an executable loads at its start."""
    with open(program, "rb") as file:
        if file.read(4) != b"\x7fELF":
            return []
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return [path for path in re.findall(r"=> (/\S+)", listed)
            if pathlib.Path(path).is_relative_to(build)]


def machine() -> list[bytes]:
    cpu = pathlib.Path("/proc/cpuinfo").read_text()
    lines = re.findall(r"^(?:model name|flags)\s*:.*$", cpu, re.MULTILINE)
    packages = [path for path in (pathlib.Path("/var/lib/dpkg/status"),
                                  ROOT / ".venv/requirements.sha256", ROOT / ".cuda/packages")
                if path.is_file()]
    return [repr((sorted(set(lines)), os.cpu_count(), platform.release())).encode(),
            *(of_file(str(path)) for path in packages)]


def key_of(command: list[str], inputs: list[str], build: pathlib.Path) -> str:
    def plain(text: str) -> bytes:
        return text.replace(str(build), "BUILD").replace(str(ROOT), "SOURCE").encode()

    steering = sorted(f"{name}={value}" for name, value in os.environ.items()
                      if STEERING.match(name) and name not in NOT_STEERING)
    parts = [*map(plain, command), *map(plain, steering), *machine()]
    own = [str(ROOT / "tests" / name) for name in OWN]
    named = [word for word in command if os.path.isfile(word) and os.path.isabs(word)]
    for path in own + named:
        parts += [plain(path), of_file(path)]
    for word in named:
        if pathlib.Path(word).is_relative_to(build):
            parts += [of_file(path) for path in own_libraries(word, build)]
    # A variable may name a program, or a folder of packages, that the build has made.
    steered = [pathlib.Path(path) for setting in steering
               for path in setting.partition("=")[2].split(":")]
    steered = [path for path in steered if path.is_absolute() and path.is_relative_to(build)]
    for path in [*inputs, *steered]:
        for file in files_below(pathlib.Path(path)):
            parts += [plain(str(file)), of_file(str(file))]
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.hexdigest()


def take(kept: pathlib.Path, key: str, report: pathlib.Path) -> bool:
    """Puts the report of a kept result in its place; false if there is none."""
    path = kept / key[:2] / key
    try:
        text = path.read_bytes()
        os.utime(path)
    except FileNotFoundError:
        return False
    if text:
        report.write_bytes(text)
    return True


def keep(kept: pathlib.Path, key: str, report: pathlib.Path) -> None:
    path = kept / key[:2] / key
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{key}.{os.getpid()}")
    if report.exists():
        shutil.copyfile(report, part)
    else:
        part.touch()
    part.rename(path)
