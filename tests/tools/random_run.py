"""Faults that are drawn at random (random_faults.py) are planted one by one, and the programs that
reach their lines (reach.py) run: tests/tools/mutants --random."""
import collections
import hashlib
import itertools
import json
import os
import pathlib
import re
import time

from planted import parse
from random_faults import AREAS, drawn
from reach import Reach
from workshop import SCRIPTS, TIMED_OUT, Workshop, known_tests

EQUIVALENT = pathlib.Path(__file__).resolve().parent / "equivalent_faults"
NOT_COMPILED, SAME_BYTES = "does not compile", "changes no byte"  # another is drawn instead
OUTCOMES = ("caught", "survived", "not reached", "equivalent", "undecided")
GOAL = 0.95


def is_busy():
    """Whether others compute here, so that a program may be late without a fault."""
    return os.getloadavg()[0] > os.cpu_count() + 1


def equivalent():
    """Those that were shown to change nothing that anybody could notice."""
    return {(m.file, m.old.strip(), m.new.strip()): m.name for m in parse(EQUIVALENT)}


def stale_equivalents(root):
    for (file, old, _), reason in equivalent().items():
        path = root / file
        if not path.is_file() or old not in map(str.strip, path.read_text().split("\n")):
            yield f"{EQUIVALENT.name}: {reason}: its line is not in {file}"


class Hunt:
    def __init__(self, directory, programs):
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        included = directory / "tree/tests/tools/product_options.cmake"
        arguments = [f"-DCMAKE_PROJECT_spillway_INCLUDE={included}"]
        self.workshop = Workshop(directory, "random", [
            *arguments, "-DSPILLWAY_PRODUCT_OPTIONS=-w"])  # a fault may leave something unused
        counted = Workshop(directory, "counted", [
            *arguments, "-DSPILLWAY_PRODUCT_OPTIONS=--coverage;-O1;-w", "-DCMAKE_UNITY_BUILD=ON"])
        self.workshop.prepare()
        self.reach = Reach(directory, counted, self.workshop)
        self.kept = directory / "random.jsonl"
        lines = self.kept.read_text().splitlines() if self.kept.exists() else []
        self.outcomes = {line["key"]: line for line in map(json.loads, lines)}
        self.digests = {}
        for program in programs:
            self.learn(program)
        self.reach.read_includes()
        commands = json.loads((self.workshop.build / "compile_commands.json").read_text())
        self.objects = collections.defaultdict(list)
        for command in commands:
            source = pathlib.Path(command["directory"], command["file"])
            output = re.search(r" -o (\S+) ", command["command"])[1]
            self.objects[str(source.resolve())].append(output)

    def learn(self, program):
        """Builds a program, and learns how long it runs and what it reaches."""
        assert self.workshop.make((program, "")), f"{program} does not build; see log.txt"
        self.digests[program] = self.workshop.digest(program)
        self.reach.count(program)
        if self.reach.seconds[program] is None:
            print(f"{program} fails without a fault, and is left out", flush=True)

    def in_order(self, programs):
        """Cheap ones first, scripts last."""
        return sorted(programs, key=lambda p: (p in SCRIPTS, self.reach.seconds[p] or 0, p))

    def outcome(self, fault):
        """What the fault came to, and by which program."""
        reaching, possible = self.reach.programs(fault.file, fault.line)
        programs = self.in_order(reaching) + self.in_order(possible)
        text = fault.text(self.workshop.tree)
        content = "\n".join([fault.file, text, *(self.digests[p] for p in programs)])
        key = hashlib.sha256(content.encode()).hexdigest()
        if key not in self.outcomes:
            outcome, by = self.plant(fault.file, text, programs)
            self.outcomes[key] = {"key": key, "outcome": outcome, "by": by}
            if outcome != "undecided":
                with self.kept.open("a") as file:
                    print(json.dumps(self.outcomes[key]), file=file)
        return self.outcomes[key]["outcome"], self.outcomes[key]["by"]

    def plant(self, file, text, programs):
        build = self.workshop.build
        objects = self.objects[str((self.workshop.tree / file).resolve())]

        def digests():
            return [hashlib.sha256((build / o).read_bytes()).digest() for o in objects]
        assert not objects or self.workshop.make_targets(build, *objects), "see log.txt"
        before = digests()
        with self.workshop.planted({file: text}):
            if objects and not self.workshop.make_targets(build, *objects):
                return NOT_COMPILED, ""
            if objects and digests() == before:
                return SAME_BYTES, ""
            if not programs:
                return "not reached", ""
            return self.run(programs)

    def run(self, programs):
        changed = hangs = False
        for program in programs:
            if not self.workshop.make((program, "")):
                return NOT_COMPILED, ""
            if self.workshop.digest(program) == self.digests[program]:
                continue
            changed = True
            seconds = self.reach.seconds[program]
            if seconds is None:
                continue
            status = self.workshop.status((program, ""), seconds=3 * seconds + 10)
            if status == TIMED_OUT and is_busy():
                hangs = True
            elif status != 0:
                return "caught", program + (" (hangs)" if status == TIMED_OUT else "")
        if not changed:
            return SAME_BYTES, ""
        fails = hangs or any(self.reach.seconds[program] is None for program in programs)
        return ("undecided" if fails else "survived"), ""


def chosen_programs(given):
    """Those that may find something on a machine without a GPU, in builds without CUDA."""
    programs = set(known_tests())
    if given:
        unknown = set(given) - programs
        assert not unknown, f"there is no test {', '.join(sorted(unknown))}"
        return sorted(given)
    return sorted(p for p in programs if not re.search(r"(_gpu|^cudnn_planner)_test$", p))


def hunt(options, directory):
    """Plants as many faults as are asked for, and returns the status of the program."""
    areas = options.area or AREAS
    hunting = Hunt(directory, chosen_programs(options.by))
    known, found, redrawn = equivalent(), [], collections.Counter()
    part, parts = options.part
    every = drawn(hunting.workshop.tree, areas, options.seed)
    for fault in itertools.islice(every, part - 1, None, parts):
        if len(found) == options.random:
            break
        begin = time.monotonic()
        key = (fault.file, fault.old.strip(), fault.new.strip())
        outcome, by = ("equivalent", known[key]) if key in known else hunting.outcome(fault)
        if outcome in (NOT_COMPILED, SAME_BYTES):
            redrawn[outcome] += 1
            continue
        found.append((fault, outcome, by))
        print(f"{outcome:12} {fault.file}:{fault.line + 1} {fault.kind} "
              f"({time.monotonic() - begin:.0f} s) {by}", flush=True)
    return report(options, found, redrawn)


def report(options, found, redrawn):
    for fault, outcome, _ in found:
        if outcome not in ("caught", "equivalent"):
            print(f"\n{outcome}: {fault.difference()}")
    counts = collections.Counter(outcome for _, outcome, _ in found)
    print("\n" + "\n".join(f"{outcome:12} {counts[outcome]:5}" for outcome in OUTCOMES))
    print(f"drawn again: {redrawn[NOT_COMPILED]} that do not compile, {redrawn[SAME_BYTES]} that "
          "change no byte of a program")
    good = (counts["caught"] + counts["equivalent"]) / max(len(found), 1)
    print(f"{100 * good:.1f} % of {len(found)} faults are caught or equivalent; the seed is "
          f"{options.seed}")
    if options.json:
        faults = [fault._asdict() | {"line": fault.line + 1, "outcome": outcome, "by": by}
                  for fault, outcome, by in found]
        options.json.write_text(json.dumps({
            "seed": options.seed, "areas": options.area, "outcomes": counts,
            "drawn_again": redrawn, "faults": faults}, indent=1) + "\n")
    return 0 if good >= GOAL else 1
