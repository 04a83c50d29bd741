"""Faults that are drawn at random (random_faults.py) and the programs that find them:
tests/tools/mutants --random. Most are built together (switched_faults.py), each of the others
alone."""
import collections
import concurrent.futures
import functools
import hashlib
import itertools
import json
import os
import pathlib
import re
import threading
import time

from planted import parse
from random_faults import AREAS, drawn, found_again
from switched_faults import HEADER, HEADER_NAME, SwitchedFile
from workshop import SCRIPTS, TIMED_OUT, Workshop, known_tests

EQUIVALENT = pathlib.Path(__file__).resolve().parent / "equivalent_faults"
NOT_COMPILED, SAME_BYTES = "does not compile", "changes no byte"  # another is drawn instead
OUTCOMES = ("caught", "survived", "not reached", "equivalent", "undecided")
GOOD = ("caught", "equivalent")
KEPT = "random.jsonl"  # in the folder of the work
GOAL = 0.95
SPARE = 1.25           # faults that are built for each that is asked for: some are drawn again
QUICK_SECONDS = 1
LONGEST_FILTER = 100_000  # characters of one argument
CLEAN_SECONDS = 3600   # of a program without a fault
LANES = 2 * (os.cpu_count() or 1)  # programs side by side: many wait
PATIENCE, MORE_PATIENCE = 3, 10    # times the seconds without a fault, beside others and alone
# An error, the use of a template that has it, or the constant that is none where it wants one.
REFUSED = re.compile(r"^(\S+?):(\d+):(?:\d+:)? (?:(?:fatal )?error:|  required from here|"
                     r"note: .* was not initialized with a constant expression)", re.M)


def is_busy():
    """Whether others compute here, so that a program may be late without a fault."""
    return os.getloadavg()[0] > LANES + 1


def equivalent():
    """Those that were shown to change nothing that anybody could notice."""
    return {(m.file, m.old.strip(), m.new.strip()): m.name for m in parse(EQUIVALENT)}


def stale_equivalents(root):
    for (file, old, _), reason in equivalent().items():
        path = root / file
        if not path.is_file() or old not in map(str.strip, path.read_text().split("\n")):
            yield f"{EQUIVALENT.name}: {reason}: its line is not in {file}"


def digest(*texts):
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


class Kept:
    """Outcomes and what programs reach, by content, so that another run goes on."""

    def __init__(self, path):
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.values = dict(map(json.loads, lines))
        self.lock = threading.Lock()

    def get(self, key):
        return self.values.get(key)

    def put(self, key, value):
        with self.lock, self.path.open("a") as file:
            self.values[key] = value
            print(json.dumps([key, value]), file=file)
        return value


class Hunt:
    """The faults by their numbers, the sources with all of them, and the programs."""

    def __init__(self, directory, programs, every, most):
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        included = directory / "tree/tests/tools/product_options.cmake"
        self.workshop = Workshop(directory, "random", [  # a fault may leave something unused
            f"-DCMAKE_PROJECT_spillway_INCLUDE={included}",
            "-DSPILLWAY_PRODUCT_OPTIONS=-w;-Wno-narrowing"])
        self.workshop.prepare()
        self.kept = Kept(directory / KEPT)
        self.programs = sorted(programs)
        self.most = most  # seconds that the programs of a fault may take
        self.patience = PATIENCE
        self.faults = dict(enumerate(every(self.workshop.tree), start=1))
        self.refused = digest(self.workshop.head(), *(f.difference() for f in self.faults.values()))
        self.files = self.switched_files()
        self.build()
        self.key = digest(*(self.files[file].text() for file in sorted(self.files)),
                          self.workshop.head())
        self.objects = self.workshop.objects()
        self.building = threading.Lock()  # one fault at a time is in the sources
        self.computed = set()  # faults that compilers take and then compute without them
        self.cases = {}  # by program: each with its seconds and what it reaches; "": the whole
        self.learn()
        self.computed = {number for number, fault in self.faults.items()
                         if self.together(number) and not self.reaching(number)
                         and not self.files[fault.file].is_code(number)}

    def switched_files(self):
        header = self.directory / HEADER_NAME
        header.write_text(HEADER)
        by_file = collections.defaultdict(dict)
        for number, fault in self.faults.items():
            by_file[fault.file][number] = fault
        return {file: SwitchedFile((self.workshop.tree / file).read_text(), faults, header)
                for file, faults in by_file.items()}

    def together(self, number):
        return (number in self.files[self.faults[number].file].switched
                and number not in self.computed)

    def build(self):
        """Builds all programs with all faults that compilers take together."""
        targets = sorted({target for p in self.programs for target in SCRIPTS.get(p, [p])})
        for file, line in self.kept.get(self.refused) or []:
            self.drop(file, line)
        self.write()
        for file in self.files:
            if file.endswith(".hpp"):  # before everything that includes it is built in vain
                self.compile(self.check_header, file)
        if not self.compile(self.workshop.make_targets, self.workshop.build, *targets,
                            keep_going=True):
            raise AssertionError(f"the faults do not build; see {self.directory}/log.txt")

    def compile(self, build, *arguments, **keywords):
        """Builds without the lines that compilers refuse; false: it fails for another reason."""
        while True:
            begin = self.workshop.log_size()
            if build(*arguments, **keywords):
                return True
            refused = [(self.workshop.name_in_tree(file), int(line) - 1)
                       for file, line in REFUSED.findall(self.workshop.log_from(begin))]
            dropped = [place for place in refused if self.drop(*place)]
            if not dropped:  # what a line declared is missed at another
                dropped = [(file, None) for file in sorted({str(file) for file, _ in refused})
                           if self.drop(file, None)]
            if not dropped:
                return False
            self.kept.put(self.refused, (self.kept.get(self.refused) or []) + dropped)
            self.write()

    def write(self):
        for file, source in self.files.items():
            path, text = self.workshop.tree / file, source.text()
            if path.read_text() != text:
                path.write_text(text)

    def check_header(self, file):
        return self.workshop.run("g++", "-fsyntax-only", "-std=gnu++20", "-w", "-Wno-narrowing",
                                 "-march=native", "-I.", "-x", "c++", file,
                                 cwd=self.workshop.tree) == 0

    def drop(self, file, line):
        return file in self.files and self.files[file].drop(line)

    def learn(self):
        """What each program reaches, and how long it runs, among others as later; of one that is
        not quick, each of its cases."""
        cases = []
        for program, found in self.run_all_clean([(program, "") for program in self.programs]):
            self.cases[program] = found
            if program not in SCRIPTS and any(seconds > QUICK_SECONDS for _, seconds, _ in found):
                cases += [(program, case) for case in self.workshop.cases(program)]
        self.cases |= {program: [] for program, _ in cases}
        for program, found in self.run_all_clean(cases):
            self.cases[program] += found

    def run_all_clean(self, tests):
        """The program of each test, and a list with what the test came to, if it passes."""
        for test, kept in zip(tests, self.side_by_side(self.run_clean, tests)):
            program, case = test
            if kept["seconds"] is None:
                print(f"{' '.join(test).strip()} fails without a fault, and is left out",
                      flush=True)
                yield program, []
            else:
                yield program, [(case, kept["seconds"], set(kept["reached"]))]

    def run_clean(self, test):
        key = digest(self.key, *filter(None, test))
        if self.kept.get(key):
            return self.kept.get(key)
        path = self.directory / f"{threading.get_ident()}.reached"
        path.write_bytes(bytes(len(self.faults) + 1))
        begin = time.monotonic()
        status = self.workshop.status(test, seconds=CLEAN_SECONDS, PLANTED_REACHED=str(path))
        seconds = time.monotonic() - begin if status == 0 else None
        reached = [number for number, byte in enumerate(path.read_bytes()) if byte]
        path.unlink()
        return self.kept.put(key, {"seconds": seconds, "reached": reached})

    @staticmethod
    def side_by_side(work, items):
        with concurrent.futures.ThreadPoolExecutor(LANES) as pool:
            yield from pool.map(work, items)

    def reaching(self, number):
        """Programs with their cases that reach a fault, the quickest first, scripts last; of a
        fault that is built alone, those that reach its file."""
        numbers = {number}
        if not self.together(number):
            numbers = self.files[self.faults[number].file].telling() - self.computed
        found = []
        for program, cases in self.cases.items():
            reaching = [(case, seconds) for case, seconds, reached in cases
                        if numbers & reached or not numbers]
            if reaching:
                seconds = sum(seconds for _, seconds in reaching)
                names = ":".join(case for case, _ in reaching)
                found.append((program in SCRIPTS, seconds, program,
                              names if len(names) < LONGEST_FILTER else ""))
        return sorted(found)

    def outcomes(self):
        """By number: what each fault came to, and by which of its programs, or why it is none."""
        known = equivalent()
        none = {n: ("equivalent", known[fault.place()]) for n, fault in self.faults.items()
                if fault.place() in known}
        first = [n for n in self.faults if n not in none and self.together(n) and self.reaching(n)]
        found = dict(zip(first, self.side_by_side(self.kept_outcome, first)))
        self.patience = MORE_PATIENCE
        found |= none
        return found | {n: self.kept_outcome(n) for n in self.faults
                        if found.get(n, ("undecided", ""))[0] == "undecided"}

    def kept_outcome(self, number):
        """What was caught stays so while its file is what it was: tests are not taken away."""
        fault = self.faults[number]
        key = digest(self.workshop.head(), fault.file, str(fault.line), fault.new, *self.programs)
        caught = digest(self.files[fault.file].original, str(fault.line), fault.new,
                        *self.programs)
        outcome, by, most = self.kept.get(caught) or self.kept.get(key) or ("", "", 0)
        if not outcome or outcome == "survived" and most < self.most:
            begin = time.monotonic()
            outcome, by = self.outcome(number)
            print(f"{outcome:16} {fault.file}:{fault.line + 1} {fault.kind} "
                  f"({time.monotonic() - begin:.0f} s) {by}", flush=True)
            if outcome != "undecided":
                self.kept.put(caught if outcome == "caught" else key, [outcome, by, self.most])
        return outcome, by

    def outcome(self, number):
        fault, programs = self.faults[number], self.reaching(number)
        if not self.together(number) or not programs:
            return self.plant_alone(fault, programs)
        outcome, by = self.run(programs, number)
        return (self.compiled(fault) or outcome, by) if outcome == "survived" else (outcome, by)

    def compiled(self, fault):
        """What the source's objects with and without a fault come to: it does not compile, or it
        changes no byte of them; nothing: it changes some, or it is in a header."""
        if not self.objects[fault.file]:
            return ""
        with self.building:
            without, planted = (self.objects_with(fault, line) for line in (fault.old, fault.new))
        return NOT_COMPILED if planted is None else SAME_BYTES if planted == without else ""

    def objects_with(self, fault, line):
        """Digests of the source's objects with a line in place of the switched one; none: it does
        not compile."""
        objects = self.objects[fault.file]
        with self.workshop.planted({fault.file: self.files[fault.file].text_with(fault, line)}):
            if not self.workshop.make_targets(self.workshop.build, *objects):
                return None
            return [hashlib.sha256((self.workshop.build / o).read_bytes()).digest()
                    for o in objects]

    def plant_alone(self, fault, programs):
        """What has to be constant as it is compiled, or is reached by none, which may be why."""
        if outcome := self.compiled(fault):
            return outcome, ""
        if not programs:
            return "not reached", ""
        text = self.files[fault.file].text_with(fault, fault.new)
        with self.building, self.workshop.planted({fault.file: text}):
            if not all(self.workshop.make((program, "")) for _, _, program, _ in programs):
                return NOT_COMPILED, ""
            return self.run(programs, 0)

    def run(self, programs, number):
        hangs, begin = False, time.monotonic()
        for _, seconds, program, cases in programs:
            if time.monotonic() - begin > self.most:
                break
            # Twice, so that a test that fails by chance catches nothing.
            statuses = list(itertools.takewhile(
                lambda status: status != 0,
                (self.workshop.status((program, cases), number, self.patience * seconds + 10)
                 for _ in range(2))))
            if len(statuses) == 2 and not (TIMED_OUT in statuses and is_busy()
                                           and self.patience == PATIENCE):
                return "caught", program + (" (hangs)" if TIMED_OUT in statuses else "")
            hangs |= len(statuses) == 2
        return ("undecided" if hangs else "survived"), ""


def chosen_programs(given):
    """Those that may find something on a machine without a GPU, in builds without CUDA."""
    programs = set(known_tests())
    if given:
        unknown = set(given) - programs
        assert not unknown, f"there is no test {', '.join(sorted(unknown))}"
        return sorted(given)
    return sorted(p for p in programs if not re.search(r"(_gpu|^cudnn_planner)_test$", p))


def chosen_faults(options, root):
    """Those that are to be built: drawn ones, or what an earlier report has as not caught."""
    if options.survivors:
        report = json.loads(options.survivors.read_text())
        return found_again(root, [f for f in report["faults"] if f["outcome"] not in GOOD])
    part, parts = options.part
    last = round(SPARE * options.random) * parts
    faults = drawn(root, options.area or AREAS, options.seed)
    return itertools.islice(faults, part - 1, last, parts)


def hunt(options, directory):
    """Plants as many faults as are asked for, and returns the status of the program."""
    hunting = Hunt(directory, chosen_programs(options.by),
                   functools.partial(chosen_faults, options), options.most)
    found, redrawn = [], collections.Counter()
    outcomes = hunting.outcomes()
    for number, fault in hunting.faults.items():
        if len(found) == (options.random or len(hunting.faults)):
            break
        outcome, by = outcomes[number]
        if outcome in (NOT_COMPILED, SAME_BYTES):
            redrawn[outcome] += 1
        else:
            found.append((fault, outcome, by))
    return report(options, found, redrawn)


def report(options, found, redrawn):
    for fault, outcome, _ in found:
        if outcome not in GOOD:
            print(f"\n{outcome}: {fault.difference()}")
    counts = collections.Counter(outcome for _, outcome, _ in found)
    print("\n" + "\n".join(f"{outcome:12} {counts[outcome]:5}" for outcome in OUTCOMES))
    print(f"drawn again: {redrawn[NOT_COMPILED]} that do not compile, {redrawn[SAME_BYTES]} that "
          "change no byte of a program")
    good = sum(counts[outcome] for outcome in GOOD) / max(len(found), 1)
    print(f"{100 * good:.1f} % of {len(found)} faults are caught or equivalent; the seed is "
          f"{options.seed}")
    if options.json:
        faults = [fault._asdict() | {"line": fault.line + 1, "outcome": outcome, "by": by}
                  for fault, outcome, by in found]
        options.json.write_text(json.dumps({
            "seed": options.seed, "areas": options.area, "outcomes": counts,
            "drawn_again": redrawn, "faults": faults}, indent=1) + "\n")
    return 0 if good >= GOAL else 1
