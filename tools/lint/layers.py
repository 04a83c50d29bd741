"""Who may include what: the module table of docs/development.md, as a check."""
import pathlib
import re
from typing import Iterator, Optional

from source_tree import Finding, SourceTree

# Module -> modules it may include besides itself. tools and tests may include everything.
LEAVES = ("offload", "cpu_adam", "nvme_swap", "comm")
ALLOWED = {
    "runtime/base": (),
    **{leaf: ("runtime/base",) for leaf in LEAVES},
    "runtime/data": ("runtime/base",),
    "runtime/plan": ("runtime/base",),
    "runtime/model": ("runtime/base", "offload"),
    "runtime/config": ("runtime/base", "runtime/data", "runtime/plan", *LEAVES),
    "runtime/engine": ("runtime/base", "runtime/data", "runtime/plan", "runtime/model",
                       "runtime/config", *LEAVES),
    "runtime/capi": ("runtime/base", "runtime/data", "runtime/plan", "runtime/model",
                     "runtime/config", "runtime/engine", *LEAVES),
    "tools": ("runtime/base", "runtime/data", "runtime/plan", "runtime/model", "runtime/config",
              "runtime/engine", "runtime/capi", *LEAVES),
    "tests": ("runtime/base", "runtime/data", "runtime/plan", "runtime/model", "runtime/config",
              "runtime/engine", "runtime/capi", "tools", *LEAVES),
}

# Rooms of modules whose libraries nothing that trains is linked with: for tools and tests alone.
ROOMS = ("comm/baselines", "runtime/plan/grid")

# Modules that have floors: their folders, and the files beside them, include no other in a circle.
WITH_FLOORS = ("runtime/plan", "runtime/engine", "runtime/engine/embedded")

# Third-party header -> folders that may include it, besides tools and tests. `None`: everywhere.
HOMES = (
    (r"cublas|cudnn", ("runtime/model/cuda",)),
    (r"nccl", ("comm/nccl",)),
    (r"nvtx3/", ("runtime/base",)),
    (r"cuda|cub/|cooperative_groups|mma\.h",
     ("offload/cuda", "runtime/model/cuda", "cpu_adam/cuda", "comm/nccl", "runtime/base/cuda")),
    (r"(oneapi/)?dnnl", ("runtime/model/host",)),
    (r"omp\.h$", ("runtime/model/host",)),
    (r"liburing", ("nvme_swap",)),
    (r"sodium\.h", ("comm/tcp",)),
    (r"libaio", ("nvme_swap",)),
    (r"(oneapi/)?tbb", ("cpu_adam",)),
    (r"\w*intrin\.h$", ("runtime/base/simd",)),
    (r"hwloc", ("runtime/base",)),
    (r"spdlog/", ("runtime/base",)),
    (r"mpi\.h$", ("comm/mpi",)),
    (r"CLI/|gtest/|gmock/|nanobind/|spillway\.h$", ()),
    (r"fmt/|nlohmann/|xxh", None),
)
# Headers of which one file of the whole project is the home.
ONE_FILE = (r"liburing", r"libaio", r"nvtx3/", r"sodium\.h")

# runtime/plan is pure: no files, no threads.
IMPURE = re.compile(r"(c?stdio|fstream|filesystem|thread|mutex|shared_mutex|condition_variable|"
                    r"future|semaphore|barrier|latch|unistd\.h|fcntl\.h|pthread\.h|sys/.*)$")
STANDARD = re.compile(r"[a-z_0-9]+$")
POSIX = re.compile(r"((sys|linux|asm|netinet|arpa)/[\w/.-]+|(cpuid|cxxabi|dirent|dlfcn|errno|"
                   r"execinfo|fcntl|fenv|limits|link|malloc|math|netdb|poll|pthread|pwd|sched|"
                   r"semaphore|setjmp|signal|stddef|stdint|stdio|stdlib|string|strings|termios|"
                   r"time|ucontext|unistd)\.h)$")
OPENMP = re.compile(r"\s*#\s*pragma\s+omp\b")
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
# What a module's CMakeLists.txt gives to the installed package.
HEADERS = re.compile(r"\bHEADERS((?:\s+[\w/]+\.hpp)+)")


def module_of(path: str) -> Optional[str]:
    """"runtime/model/host/ops.cpp" -> "runtime/model"; None outside the modules."""
    folders = path.split("/")[:-1]
    for depth in (2, 1):
        name = "/".join(folders[:depth])
        if name in ALLOWED:
            return name
    return None


def below(path: str, folder: str) -> bool:
    return path.startswith(folder + "/")


def check_quoted(tree: SourceTree, path: str, included: str) -> Optional[str]:
    if not tree.exists(included):
        return f'"{included}" is no path from the repository root'
    here, there = module_of(path), module_of(included)
    if there is None or here is None:
        return f'"{included}" belongs to no module'
    if here != there and there not in ALLOWED[here]:
        return f"{here} must not include {there} (\"{included}\")"
    for room in ROOMS:
        if below(included, room) and not below(path, room) and here not in ("tools", "tests"):
            return f'"{included}" is for tools and tests alone'
    if "/detail/" in included and here not in (there, "tests"):
        return f'"{included}" is private to {there}'
    return None


def check_third_party(path: str, included: str) -> Optional[str]:
    """None if `included` is a third-party header in one of its homes, else what is wrong."""
    for pattern, homes in HOMES:
        if not re.match(pattern, included):
            continue
        if homes is None or module_of(path) in ("tools", "tests"):
            return None
        if any(below(path, home) for home in homes):
            return None
        return f"<{included}> belongs in {', '.join(homes) or 'tools and tests'} only"
    return f"<{included}> is unknown: give it a home in tools/lint/layers.py"


def check_angled(path: str, included: str) -> Optional[str]:
    if module_of(path) == "runtime/plan" and IMPURE.match(included):
        return f"runtime/plan is pure: no <{included}>"
    if STANDARD.match(included) or POSIX.match(included):
        return None
    return check_third_party(path, included)


def public_headers(tree: SourceTree) -> set[str]:
    found = set()
    for listing, text in tree.listings.items():
        folder = pathlib.PurePosixPath(listing).parent
        for names in HEADERS.findall(text):
            found.update((folder / name).as_posix() for name in names.split())
    return found


def check_installed(tree: SourceTree) -> Iterator[Finding]:
    """The installed headers include one another and nothing else of ours."""
    public = public_headers(tree)
    for path in sorted(public):
        if not tree.exists(path):
            yield Finding(path, 1, "a CMakeLists.txt installs this header, which does not exist")
            continue
        for number, line in enumerate(tree.lines(path), 1):
            match = INCLUDE.match(line)
            if match and match.group(1) == '"' and match.group(2) not in public:
                yield Finding(path, number, f'"{match.group(2)}" is not installed; this header is')


def room_of(path: str, module: str) -> str:
    """"runtime/plan/step/check.cpp" -> "step"; a header and its source beside folders are one."""
    return path[len(module) + 1:].split("/")[0].split(".")[0]


def check_floors(tree: SourceTree, module: str) -> Iterator[Finding]:
    """Finds an include that closes a circle of rooms."""
    includes: dict[str, dict[str, tuple[str, int]]] = {}
    for path in tree.cxx_files():
        if not below(path, module):
            continue
        for number, line in enumerate(tree.lines(path), 1):
            match = INCLUDE.match(line)
            if match and below(match.group(2), module):
                room = room_of(match.group(2), module)
                includes.setdefault(room_of(path, module), {}).setdefault(room, (path, number))

    def reached(room: str) -> set[str]:
        found, waiting = set(), [room]
        while waiting:
            new = includes.get(waiting.pop(), {}).keys() - found
            found |= new
            waiting += new
        return found

    for room, others in sorted(includes.items()):
        for other, (path, number) in sorted(others.items()):
            if other != room and room in reached(other):
                yield Finding(path, number, f"{module}: {room} includes {other}, which includes it "
                                            "in turn, itself or through others")


def check(tree: SourceTree) -> Iterator[Finding]:
    yield from check_installed(tree)
    for module in WITH_FLOORS:
        yield from check_floors(tree, module)
    homes_seen: dict[str, str] = {}
    for path in tree.cxx_files():
        if below(path, "tests/consumer"):
            continue  # a project of its own, which sees the installed package only
        for number, line in enumerate(tree.lines(path), 1):
            match = INCLUDE.match(line)
            if match is None:
                if OPENMP.match(line) and not below(path, "runtime/model/host"):
                    yield Finding(path, number, "OpenMP belongs in runtime/model/host only")
                continue
            quoted, included = match.group(1) == '"', match.group(2)
            problem = (check_quoted(tree, path, included) if quoted
                       else check_angled(path, included))
            if problem:
                yield Finding(path, number, problem)
            for pattern in ONE_FILE:
                if not quoted and re.match(pattern, included):
                    first = homes_seen.setdefault(pattern, path)
                    if first != path:
                        yield Finding(path, number, f"<{included}> has its one home in {first}")
