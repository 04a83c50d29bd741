"""Faults for tests/tools/mutants: what one is, how a list of them is read, and those that are made
from the sources, which are each barrier of each kernel left out, and each wait of one stream for
another. These are built at once; SPILLWAY_PLANTED in the environment says which of them a program
has."""
import itertools
import pathlib
import re
import sys
from typing import NamedTuple

BARRIER = re.compile(r"^\s*__sync(threads|warp)\(\);")
TEAM = re.compile(r"^(\s*)(team|warp)(\.each\(.*)$")
STREAMS = ("gpu", "h2d", "d2h")
EXECUTOR = "runtime/engine/step/executor.cpp"
WAITS = "          if (elsewhere && states_[dependency] == OpState::issued) {"
# Only stages of a pipeline have such a dependency (tests/plan/expect_correct.hpp); no run has them.
NEVER = ("d2h", "h2d")
WAITING = ("forward", "backward", "loss", "accumulate", "upload_params", "download_grads",
           "read_state", "save_boundary", "load_boundary", "save_activations", "load_activations")
HEADER = """#include <cstdlib>
#ifndef PLANTED_FAULT
#define PLANTED_FAULT
[[maybe_unused]] static bool planted_fault(int number) {
  static const char* const chosen = std::getenv("SPILLWAY_PLANTED");
  return chosen != nullptr && std::atoi(chosen) == number;
}
#endif
"""
# What tests the kernels of a source: the longest that its path starts with.
TESTED = (("cpu_adam/", "cpu_adam_emulated_test", ""),
          ("runtime/base/", "model_emulated_test", "EveryCase/LossOps.*:EveryCase/Norm.*"),
          ("runtime/base/", "cpu_adam_emulated_test", ""),
          ("runtime/model/cuda/attention/", "model_emulated_test", "EveryCase/Attention.*"),
          ("runtime/model/cuda/kernels/bodies/attention", "model_emulated_test",
           "EveryCase/Attention.*"),
          ("runtime/model/cuda/kernels/bodies/norm", "model_emulated_test", "EveryCase/Norm.*"),
          ("runtime/model/cuda/kernels/bodies/", "model_emulated_test",
           "EveryCase/LossOps.*:EveryCase/Norm.*"))


class Mutant(NamedTuple):
    area: str
    name: str
    file: str
    tests: list   # (target, GoogleTest filter or part of a case's name)
    old: str
    new: str
    number: int = 0  # of those that are built at once; 0: built alone


def parse(path):
    mutants, name, file, tests, old, new = [], None, None, [], [], []

    def close():
        if name is not None:
            mutants.append(Mutant(path.name, name, file, tests, "\n".join(old), "\n".join(new)))
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if line.startswith("= "):
            close()
            name, file, tests, old, new = line[2:], None, [], [], []
        elif line.startswith("in "):
            file = line[3:]
        elif line.startswith("by "):
            target, _, chosen = line[3:].partition(" ")
            tests.append((target, chosen))
        elif line[:1] in ("-", "+"):
            (old if line[0] == "-" else new).append(line[1:])
        elif line and not line.startswith("#"):
            sys.exit(f"{path}:{number}: not understood: {line}")
    close()
    return mutants


def without_barrier(line, fault):
    """Text in place of a line with a barrier at its end, which `fault` leaves out; none: it has
    none."""
    if BARRIER.match(line):
        return line.replace("__sync", f"if (!{fault}) __sync", 1)
    if team := TEAM.match(line):
        indent, name, rest = team.groups()
        lane = f"threadIdx.x % std::remove_cvref_t<decltype({name})>::kLanes"
        either = f"{fault} ? body({lane}) : {name}.each(body);"
        return "\n".join(["#ifdef __CUDACC__",
                          f"{indent}[&](auto body) {{ {either} }}({rest.removeprefix('.each(')}",
                          "#else", line, "#endif"])
    return None


def tests_of(file):
    matching = [tested for tested in TESTED if file.startswith(tested[0])]
    longest = max((len(start) for start, _, _ in matching), default=0)
    tests = [(target, chosen) for start, target, chosen in matching if len(start) == longest]
    # The same bodies with elements of one type: the sanitizer is slow.
    return tests + [("tsan:" + target, chosen.replace(".*", ".*fp32")) for target, chosen in tests]


def barriers(root):
    """Faults in what nvcc compiles: each barrier left out, those too at the end of a team's step.
    Yields area, name, file, tests, line and what makes of it the text with the fault."""
    sources = [path for folder in ("cpu_adam/cuda", "runtime/base", "runtime/model/cuda")
               for path in sorted((root / folder).rglob("*")) if path.suffix in (".cu", ".hpp")]
    for path in sources:
        file = path.relative_to(root).as_posix()
        count = 0
        for index, line in enumerate(path.read_text().split("\n")):
            if without_barrier(line, "") is not None:
                count += 1
                yield ("barriers", f"without_barrier_{count}_of_{path.stem}", file, tests_of(file),
                       index, without_barrier)


def waits(root):
    """Faults in the executor: one stream waits for nothing of one other, or one op for nothing."""
    index = (root / EXECUTOR).read_text().split("\n").index(WAITS)
    spared = {f"{waiting}_does_not_wait_for_{other}":
              f"name == Lane::{waiting} && plan_.ops[dependency].lane == Lane::{other}"
              for waiting, other in itertools.permutations(STREAMS, 2)
              if (waiting, other) != NEVER}
    spared |= {f"no_{op}_waits_for_another_stream": f'plan::name_of(op) == "{op}"'
               for op in WAITING}
    for name, condition in spared.items():
        def spare(line, fault, condition=condition):
            return line.replace("elsewhere &&", f"elsewhere && !({fault} && {condition}) &&", 1)
        yield ("waits", name, EXECUTOR, [("tools.emulated_runs", "")], index, spare)


def faults(root):
    return enumerate([*barriers(root), *waits(root)], start=1)


def generated(root=pathlib.Path(__file__).resolve().parents[2]):
    return [Mutant(area, name, file, tests, "", "", number)
            for number, (area, name, file, tests, _, _) in faults(root)]


def planted(root):
    """By file: its text with all of the faults in it."""
    texts = {}
    for number, (_, _, file, _, index, change) in faults(root):
        lines = texts.setdefault(file, (root / file).read_text().split("\n"))
        lines[index] = change(lines[index], f"::planted_fault({number})")
    return {file: "\n".join(lines).replace("#include", HEADER + "#include", 1)
            for file, lines in texts.items()}
