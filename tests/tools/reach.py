"""Which lines of the product each test program reaches, and how long it takes, for
tests/tools/mutants --random: a build that counts lines runs each program once. What was counted is
kept by what the program consists of."""
import collections
import json
import pathlib
import re
import subprocess
import tempfile
import time

CLEAN_SECONDS = 3600  # without a fault
TEST_OBJECT = re.compile(r"tests/.*CMakeFiles/(\w+)\.dir/.*: #deps")


def name_in(tree, folder, file):
    """The file's name in the tree, which compilers are told to leave out; none: it is elsewhere."""
    for start in (folder, tree):
        path = pathlib.Path(start, file).resolve()
        if path.is_relative_to(tree) and path.is_file():
            return path.relative_to(tree).as_posix()
    return None


def counted_lines(counts, tree):
    """By file: the lines that can run, and those that did."""
    known, ran = collections.defaultdict(set), collections.defaultdict(set)
    counted = list(pathlib.Path(counts).rglob("*.gcda"))
    for path in counted:
        relative = path.relative_to(counts).with_suffix(".gcno")
        notes = next(p for p in (pathlib.Path("/") / relative, tree / relative) if p.exists())
        path.with_suffix(".gcno").symlink_to(notes)
    output = subprocess.run(["gcov", "--json-format", "--stdout", *map(str, counted)], check=True,
                            cwd=counts, capture_output=True, text=True).stdout if counted else ""
    for document in map(json.loads, output.splitlines()):
        for file in document["files"]:
            name = name_in(tree, document["current_working_directory"], file["file"])
            if name:
                known[name].update(line["line_number"] for line in file["lines"])
                ran[name].update(line["line_number"] for line in file["lines"] if line["count"])
    return {name: {"known": sorted(known[name]), "ran": sorted(ran[name])} for name in known}


class Reach:
    """What programs reach. `workshop` has the build that counts, `plain` the other."""

    def __init__(self, directory, workshop, plain):
        self.kept = directory / "reach"
        self.kept.mkdir(exist_ok=True)
        self.workshop = workshop
        self.plain = plain
        self.seconds = {}  # by program: what its run took; none: it fails
        self.lines = {}    # by program and file
        self.known = collections.defaultdict(set)
        self.including = collections.defaultdict(set)  # by header: programs whose tests include it
        self.sources = collections.defaultdict(set)    # by header: those of the product

    def count(self, program):
        digest = self.plain.digest(program)
        path = self.kept / f"{program}.json"
        kept = json.loads(path.read_text()) if path.exists() else {}
        if kept.get("digest") != digest:
            assert self.workshop.make((program, "")), f"{program} does not build; see log.txt"
            with tempfile.TemporaryDirectory() as counts:
                begin = time.monotonic()
                status = self.workshop.status((program, ""), seconds=CLEAN_SECONDS,
                                              GCOV_PREFIX=counts)
                kept = {"digest": digest, "seconds": time.monotonic() - begin,
                        "passes": status == 0,
                        "lines": counted_lines(counts, self.workshop.tree)}
            path.write_text(json.dumps(kept))
        self.seconds[program] = kept["seconds"] if kept["passes"] else None
        self.lines[program] = {file: set(lines["ran"]) for file, lines in kept["lines"].items()}
        for file, lines in kept["lines"].items():
            self.known[file].update(lines["known"])

    def read_includes(self):
        """Templates and inline functions of a header also run where a test was compiled."""
        deps = subprocess.run(["ninja", "-C", str(self.plain.build), "-t", "deps"], check=True,
                              capture_output=True, text=True).stdout
        for entry in deps.split("\n\n"):
            head, *files = entry.strip().split("\n")
            names = [re.sub(r"^(\.\./)+", "", file.strip().removeprefix(f"{self.plain.tree}/"))
                     for file in files]
            test = TEST_OBJECT.match(head)
            for name in names:
                if not test:
                    self.sources[name].add(names[0])
                elif test[1] in self.lines:
                    self.including[name].add(test[1])

    def programs(self, file, line):
        """Those that reach a line, counted from 0, and those that may."""
        known, number = self.known[file], line + 1
        text = (self.plain.tree / file).read_text().split("\n")
        while number not in known and text[number - 1].startswith((" ", ")")):
            number -= 1  # to the beginning of what it is a part of
        if number in known:
            reaching = {p for p, lines in self.lines.items() if number in lines.get(file, ())}
        else:
            # Constants of a header count where a source that includes it does.
            files = {file} if known else self.sources[file]
            reaching = {p for p, lines in self.lines.items() if any(map(lines.get, files))}
        return reaching, self.including[file] - reaching
