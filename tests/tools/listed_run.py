"""Faults of the lists that are built together, as drawn ones are, for tests/tools/mutants."""
from random_faults import Fault
from random_run import CLEAN_SECONDS, SAME_BYTES, Hunt
from workshop import ROOT, SCRIPTS, WATCHED


class ListedHunt(Hunt):
    """Faults of the lists, each by the tests that are named with it."""

    def __init__(self, directory, mutants):
        self.tests = dict(enumerate((m.tests for m in mutants), start=1))
        self.seconds = {}  # by test, without a fault
        self.reached = None  # by tests without a fault; none: they have not run yet
        super().__init__(directory, {target for m in mutants for target, _ in m.tests},
                         lambda root: [fault_of(m, root) for m in mutants], CLEAN_SECONDS)

    def learn(self):
        tests = sorted({test for tests in self.tests.values() for test in tests})
        reached = set()
        for test, kept in zip(tests, self.side_by_side(self.run_clean, tests)):
            assert kept["seconds"] is not None, f"{' '.join(test)} fails without a fault"
            self.seconds[test] = kept["seconds"]
            reached.update(kept["reached"])
        self.reached = reached

    def together(self, number):
        """What no test reaches may be computed by compilers, without its fault: it is built
        alone."""
        return super().together(number) and (self.reached is None or number in self.reached)

    def reaching(self, number):
        return [(target in SCRIPTS, self.seconds[target, chosen], target, chosen)
                for target, chosen in self.tests[number]]


def buildable_together(mutants):
    """Those faults of the lists that change one line of C++, each another."""
    one_line = (m for m in mutants
                if m.file.endswith((".cpp", ".hpp")) and "\n" not in m.old + m.new
                and not any(target.startswith(WATCHED) for target, _ in m.tests))
    by_line = {fault_of(m, ROOT)[:2]: m for m in one_line}
    return list(by_line.values())


def fault_of(mutant, root):
    lines = (root / mutant.file).read_text().split("\n")
    index, = (index for index, line in enumerate(lines) if mutant.old in line)
    old = lines[index]
    return Fault(mutant.file, index, mutant.name, old, old.replace(mutant.old, mutant.new))


def plant_together(mutants, directory):
    """By name: what each of these faults came to, and what caught it."""
    found = ListedHunt(directory, mutants).outcomes()
    return {m.name: ("survived", "") if found[number][0] == SAME_BYTES else found[number]
            for number, m in enumerate(mutants, start=1)}
