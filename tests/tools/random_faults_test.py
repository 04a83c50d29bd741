"""usage: random_faults_test.py SCRATCH   Faults drawn at random: which lines they change, and what
tests/tools/mutants --random makes of those of a small project of its own."""
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

TOOLS = pathlib.Path(__file__).resolve().parent
ROOT = TOOLS.parents[1]
sys.path.insert(0, str(TOOLS))
import random_faults  # noqa: E402  (the path comes first)
import random_run  # noqa: E402
import switched_faults  # noqa: E402
import workshop  # noqa: E402

SCRATCH = pathlib.Path(sys.argv.pop(1)).resolve()
DRAWN = 60

TEXTS = r'''
// if (a < 1) return 2;
/* f(1, 2);
   x = 3; */
const char* const kText = "a < b && f(1, 2)";  // 4 + 5
const char* const kRaw = R"(if (x == 7) f(8, 9);)";
char letter() { return 'x'; }
#define SEVEN 7
void report(int value) { log_error(fmt::format("{} of {}", value + 1, f(1, 2))); }
static_assert(sizeof(int) == 4);
void declared(int first, int second);
'''
SAMPLE = {
    "CMakeLists.txt": """cmake_minimum_required(VERSION 3.25)
project(spillway LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
add_library(spillway_base STATIC runtime/base/sample.cpp)
set_property(GLOBAL APPEND PROPERTY SPILLWAY_MODULE_TARGETS spillway_base)
target_include_directories(spillway_base PUBLIC ${PROJECT_SOURCE_DIR})
enable_testing()
add_subdirectory(tests)
""",
    "CMakePresets.json": json.dumps({"version": 6, "configurePresets": [
        {"name": "release", "generator": "Ninja", "binaryDir": "${sourceDir}/build/release",
         "cacheVariables": {"CMAKE_BUILD_TYPE": "Release",
                            "CMAKE_EXPORT_COMPILE_COMMANDS": "ON"}}]}),
    "tests/CMakeLists.txt": """function(spillway_test name)
  add_executable(${name} ${name}.cpp)
  target_link_libraries(${name} PRIVATE spillway_base)
endfunction()
spillway_test(sample_test)
spillway_test(other_test)
""",
    "runtime/base/sample.hpp": """#pragma once
int larger(int a, int b);
int unwatched(int a);
int unreached(int a);
int fixed();
int computed();
""",
    "runtime/base/sample.cpp": """#include "runtime/base/sample.hpp"
int larger(int a, int b) {
  if (a < b) return b;
  return a;
}
int unwatched(int a) {
  return a * 2;
}
int unreached(int a) {
  return a - 3;
}
enum Sizes { kOne = 1 };
int fixed() {
  return kOne;
}
constexpr int kFive = 5;
constexpr int kRows[] = {
    11,
};
int computed() {
  return kFive + kRows[0];
}
""",
    "tests/sample_test.cpp": """#include "runtime/base/sample.hpp"
int main() {
  unwatched(1);
  if (fixed() != 1 || computed() != 16) return 1;
  const bool right = larger(1, 2) == 2 && larger(4, 3) == 4 && larger(5, 5) == 5;
  return right ? 0 : 1;
}
""",
    "tests/other_test.cpp": "int main() { return 0; }\n"}


def stripped(text):
    """The text without comments, as the compiler takes them out."""
    return subprocess.run(["g++", "-fpreprocessed", "-dD", "-E", "-P", "-x", "c++", "-"],
                          input=text, capture_output=True, text=True, check=True).stdout


def texts_of(code):
    return re.findall(r'"(?:\\.|[^"\\\n])*"', code)


class Drawn(unittest.TestCase):
    def test_the_same_seed_draws_the_same_faults(self):
        first = [list(random_faults.drawn(ROOT, ["runtime/data"], seed)) for seed in (3, 3, 4)]
        self.assertEqual(first[0], first[1])
        self.assertNotEqual(first[0], first[2])
        self.assertEqual({(f.file, f.line) for f in first[0]},
                         {(f.file, f.line) for f in first[2]})

    def test_a_line_that_changes_leaves_the_draw_of_the_others(self):
        SCRATCH.mkdir(parents=True, exist_ok=True)
        self.addCleanup(shutil.rmtree, SCRATCH, ignore_errors=True)
        (SCRATCH / "area").mkdir()
        text = "".join(f"  run(a{letter} + 1, {letter});\n" for letter in "bcdefghijk")
        draws = []
        for changed in (text, "  run(x - 1);\n" + text.replace("  run(ac + 1, c);", "  stop(9);")):
            (SCRATCH / "area/x.cpp").write_text(changed)
            draws.append([(f.old, f.new) for f in random_faults.drawn(SCRATCH, ["area"], 3)])
        same = [fault for fault in draws[1] if fault in draws[0]]
        self.assertEqual(len(same), 9)
        self.assertEqual(same, [fault for fault in draws[0] if fault in same], "the order")

    def test_a_fault_changes_one_line_and_neither_comments_nor_texts(self):
        kinds = set()
        faults = random_faults.drawn(ROOT, random_faults.AREAS, 5)
        for fault in itertools.islice(faults, DRAWN):
            before, after = (ROOT / fault.file).read_text(), fault.text(ROOT)
            lines = list(zip(before.split("\n"), after.split("\n"), strict=True))
            changed = [index for index, (old, new) in enumerate(lines) if old != new]
            self.assertEqual(changed, [fault.line], fault)
            before, after = stripped(before), stripped(after)
            self.assertNotEqual(before, after, fault)
            if fault.kind not in ("statement", "condition"):  # which may go with a text in them
                self.assertEqual(texts_of(before), texts_of(after), fault)
            kinds.add(fault.kind)
        self.assertEqual(kinds, {"statement", "condition", "operator", "constant", "arguments"})

    def test_comments_texts_messages_and_declarations_have_none(self):
        self.assertEqual(list(random_faults.faults_of("x.cpp", TEXTS)), [])

    def test_each_kind_of_line_has_its_faults(self):
        for line, expected in {
                "  run(a);": {"  ;"},
                "  if (a) return;": {"  if (!(a)) return;", "  if (true) return;",
                                     "  if (false) return;"},
                "  return a <= b;": {"  return a < b;"},
                "  x = 'a' + 8;": {"  ;", "  x = 'a' - 8;", "  x = 'a' + 9;", "  x = 'a' + 7;"},
                "  const auto y = std::max(p, q);": {"  const auto y = std::min(p, q);"},
                "  const auto y = of(p, q + r);": {"  const auto y = of(q + r, p);",
                                                   "  const auto y = of(p, q - r);"},
        }.items():
            found = {f.new for faults in random_faults.faults_of("x.cpp", line) for f in faults}
            self.assertEqual(found, expected, line)


class Switched(unittest.TestCase):
    def switched(self, old, new, before=";", after=""):
        fault = random_faults.Fault("x.cpp", 0, "", old, new)
        line = switched_faults.switched(7, fault, random_faults.code_of(old), before, after)
        return line and line.replace("::spillway_planted(7)", "F")

    def test_a_line_has_its_code_with_and_without_the_fault(self):
        for old, new, line in (
                ("  run(a);", "  ;", "  { if (F) { ; } else { run(a); } }"),
                ("  if (a && b) return;", "  if (true) return;",
                 "  if (F ? bool(true) : bool(a && b)) return;"),
                ("  auto x = a < b ? c : d;", "  auto x = a <= b ? c : d;",
                 "  auto x = (F ? (a <= b) : (a < b)) ? c : d;"),
                ("  auto x = a && b && c;", "  auto x = a || b && c;",
                 "  auto x = (F ? (a || b && c) : (a && b && c));"),
                ("  auto x = a ? b : c || d;", "  auto x = !a || b || c || d;",
                 "  auto x = (F ? (!a || b || c || d) : (a ? b : c || d));"),
                ("  auto x = f(g(a, b), c);", "  auto x = f(g(b, a), c);",
                 "  auto x = f((F ? (g(b, a)) : (g(a, b))), c);"),
                ("  for (int i = 0; i < n; ++i) {", "  for (int i = 0; i < n; --i) {",
                 "  for (int i = 0; i < n; (F ? (--i) : (++i))) {"),
                ("constexpr int kMost = 4;", "constexpr int kMost = 5;",
                 "const int kMost = (::spillway_planted_late(7) ? (5) : (4));"),
                ("    case kOne: return 1;", "    case kOne: return 2;",
                 "    case kOne: { if (F) { return 2; } else { return 1; } }"),
                ('  add(", (", a + 1);', '  add(", (", a - 1);',
                 '  { if (F) { add(", (", a - 1); } else { add(", (", a + 1); } }')):
            self.assertEqual(self.switched(old, new), line)

    def test_what_must_be_constant_or_does_not_end_has_none(self):
        for old, new in (("enum { kOne = 1 };", "enum { kOne = 2 };"),
                         ("  if constexpr (a < b) return;", "  if constexpr (a > b) return;"),
                         ("  const int x = a + b *", "  const int x = a - b *")):
            self.assertIsNone(self.switched(old, new, after="c;"))

    def test_what_a_compiler_refuses_is_given_up(self):
        text = "int f(int a) {\n  run(a);\n  return a + 1;\n}\nenum { kOne = 1 };\n"
        faults = {number: random_faults.Fault("x.cpp", line, "", text.split("\n")[line], new)
                  for number, line, new in ((1, 1, "  ;"), (2, 2, "  return a - 1;"),
                                            (3, 4, "enum { kOne = 2 };"))}
        file = switched_faults.SwitchedFile(text, faults, "x.hpp")
        self.assertEqual((set(file.switched), file.probe), ({1, 2}, 3))
        self.assertFalse(file.drop(0), "there is no fault")
        self.assertTrue(file.drop(1))
        self.assertEqual((set(file.switched), file.probe), ({2}, 1))
        self.assertIn("\n  run(a);\n", file.text(), "no probe is where a compiler refused one")
        self.assertTrue(file.drop(None), "the probes go")
        self.assertEqual((set(file.switched), file.probed), ({2}, set()))
        self.assertTrue(file.drop(None), "all goes")
        self.assertFalse(file.drop(None))
        self.assertEqual(file.text().split("\n", 2)[2], text)

    def test_what_a_template_refuses_is_found_where_it_is_used(self):
        log = ("../../a/use.cpp:139:87:   required from here\n"
               "/usr/include/c++/12/bits/unique_ptr.h:1065:30: error: no matching function\n"
               "../../a/use.cpp:7:3: note: candidate: 'f'\n")
        self.assertEqual(random_run.REFUSED.findall(log)[0], ("../../a/use.cpp", "139"))
        self.assertEqual(len(random_run.REFUSED.findall(log)), 2)


class Programs(unittest.TestCase):
    def test_a_comment_that_shows_how_to_declare_one_is_none(self):
        names = workshop.known_tests()
        self.assertIn("tools_test", names)
        self.assertNotIn("NAME", names)

    def test_cases_are_listed_without_comments_and_disabled_ones(self):
        listing = """Running main() from gtest_main.cc
Plain.
  One
  DISABLED_Two
Every/Typed/0.  # TypeParam = float
  Three/fp32  # GetParam() = 4
DISABLED_All.
  Four
"""
        self.assertEqual(workshop.cases_in(listing), ["Plain.One", "Every/Typed/0.Three/fp32"])


class Planted(unittest.TestCase):
    """The tools in a repository of their own, with one test that sees half of what there is."""

    def setUp(self):
        shutil.rmtree(SCRATCH, ignore_errors=True)
        self.root = SCRATCH / "project"
        for name, text in SAMPLE.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        tools = self.root / "tests/tools"
        tools.mkdir()
        for name in ("listed_run.py", "mutants", "planted.py", "product_options.cmake",
                     "random_faults.py", "random_run.py", "switched_faults.py", "workshop.py"):
            shutil.copy(TOOLS / name, tools)
        (tools / "equivalent_faults").write_text(
            "= a number that is equal to another is as large\nin runtime/base/sample.cpp\n"
            "-if (a < b) return b;\n+if (a <= b) return b;\n")
        self.git("init", "-q")
        self.commit()

    def tearDown(self):
        shutil.rmtree(SCRATCH, ignore_errors=True)

    def git(self, *arguments):
        subprocess.run(["git", "-C", str(self.root), "-c", "user.name=n", "-c", "user.email=e",
                        *arguments], check=True)

    def commit(self):
        self.git("add", ".")
        self.git("commit", "-q", "-m", "sample")

    def mutants(self, *arguments):
        report = SCRATCH / "report.json"
        environment = {key: value for key, value in os.environ.items() if key != "DESTDIR"}
        done = subprocess.run([sys.executable, "-B", str(self.root / "tests/tools/mutants"),
                               "--by", "sample_test", "--by", "other_test", "--work",
                               str(SCRATCH / "work"), "--json", str(report), *arguments],
                              capture_output=True, text=True, check=False, env=environment)
        self.assertTrue(report.exists(), done.stdout + done.stderr)
        return done, json.loads(report.read_text())

    def test_faults_are_caught_survive_or_are_not_reached(self):
        allowed = {"larger": {"caught", "equivalent"}, "unwatched": {"survived"},
                   "unreached": {"not reached"}, "fixed": {"caught"}, "computed": {"caught"}}
        of_line = {3: "larger", 7: "unwatched", 10: "unreached", 12: "fixed", 16: "computed",
                   18: "computed", 21: "computed"}
        seen = set()
        for seed in range(8):
            done, report = self.mutants("--random", "9", "--seed", str(seed))
            self.assertEqual(done.returncode, 1, "most of it is not tested")
            for fault in report["faults"]:
                where = of_line[fault["line"]]
                self.assertIn(fault["outcome"], allowed[where], fault)
                self.assertEqual(fault["by"] == "sample_test", fault["outcome"] == "caught")
                shown = f"-{fault['old']}\n+{fault['new']}" in done.stdout
                self.assertEqual(shown, where.startswith("un"), done.stdout)
                seen.add((where, fault["outcome"]))
        self.assertEqual(seen, {(where, outcome) for where in allowed
                                for outcome in allowed[where]})
        kept = (SCRATCH / "work/random.jsonl").read_text()
        again, report = self.mutants("--random", "9", "--seed", "7")
        self.assertEqual((SCRATCH / "work/random.jsonl").read_text(), kept, "nothing ran again")
        self.assertEqual(again.returncode, 1)
        parts = [self.mutants("--random", "9", "--seed", "7", "--part", part)[1]["faults"]
                 for part in ("1/2", "2/2")]
        self.assertCountEqual(parts[0] + parts[1], report["faults"])
        self.assertTrue(parts[0])

    def test_listed_faults_are_built_together(self):
        listed = SCRATCH / "listed"
        listed.write_text("".join(
            f"= {name}\nin runtime/base/sample.cpp\nby sample_test\n-{old}\n+{new}\n\n"
            for name, old, new in (("caught", "a < b", "a > b"),
                                   ("in_the_same_line", "return b", "return a"),
                                   ("of_two_lines", "a;\n-}\n-int un", "b;\n+}\n+int un"),
                                   ("computed", "  return kFive", "  return 1 + kFive"),
                                   ("survives", "return a * 2", "return a * 3"))))
        code = ("import json, pathlib, listed_run, planted\n"
                f"faults = planted.parse(pathlib.Path({str(listed)!r}))\n"
                "together = listed_run.buildable_together(faults)\n"
                f"path = pathlib.Path({str(SCRATCH / 'work')!r})\n"
                "print(json.dumps(listed_run.plant_together(together, path)))\n")
        done = subprocess.run([sys.executable, "-B", "-c", code], cwd=self.root / "tests/tools",
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout.splitlines()[-1]), {
            "in_the_same_line": ["caught", "sample_test"], "computed": ["caught", "sample_test"],
            "survives": ["survived", ""]})

    def test_survivors_of_a_report_are_planted_again(self):
        _, before = self.mutants("--random", "9", "--seed", "1")
        shutil.copy(SCRATCH / "report.json", SCRATCH / "before.json")
        test = self.root / "tests/sample_test.cpp"
        test.write_text(test.read_text().replace("unwatched(1);",
                                                 "if (unwatched(1) != 2) return 1;"))
        source = self.root / "runtime/base/sample.cpp"  # moved, and one line is another
        source.write_text("\n" + source.read_text().replace("return a - 3;", "return a - 4;"))
        self.commit()
        done, after = self.mutants("--survivors", str(SCRATCH / "before.json"))
        self.assertEqual(done.returncode, 0, done.stdout)
        expected = [(f["line"] + 1, f["new"], "caught") for f in before["faults"]
                    if f["outcome"] == "survived"]
        self.assertTrue(expected)
        self.assertEqual([(f["line"], f["new"], f["outcome"]) for f in after["faults"]], expected)
        self.assertIn("gone: runtime/base/sample.cpp: return a - 3;", done.stdout)


if __name__ == "__main__":
    unittest.main()
