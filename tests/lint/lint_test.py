"""Every check must find the violation it exists for, in a small tree made for the purpose."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/lint"))

import layers  # noqa: E402  (the path comes first)
import rules  # noqa: E402
import sizes  # noqa: E402
from source_tree import SourceTree  # noqa: E402

CHECKS = {"layers": layers, "rules": rules, "sizes": sizes}
HEADER = "// What it is.\n#pragma once\n"


class LintTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name)
        self.write("runtime/base/error.hpp", HEADER)
        self.write("offload/memory.hpp", HEADER)
        self.write("offload/detail/list.hpp", HEADER)

    def write(self, name, text):
        path = self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def lint(self, check):
        return [str(finding) for finding in CHECKS[check].check(SourceTree(self.tree))]

    def assert_clean(self, check):
        self.assertEqual(self.lint(check), [])

    def assert_finds(self, check, place, words):
        findings = self.lint(check)
        self.assertEqual(len(findings), 1, findings)
        self.assertTrue(findings[0].startswith(place + ": "), findings[0])
        self.assertIn(words, findings[0])


class Layers(LintTest):
    def assert_refused(self, path, include, words):
        self.write(path, HEADER + f"\n#include {include}\n")
        self.assert_finds("layers", f"{path}:4", words)

    def assert_accepted(self, path, include):
        self.write(path, HEADER + f"\n#include {include}\n")
        self.assert_clean("layers")

    def test_accepts_base_from_a_leaf(self):
        self.assert_accepted("nvme_swap/store.hpp", '"runtime/base/error.hpp"')

    def test_accepts_offload_from_model(self):
        self.assert_accepted("runtime/model/ops.hpp", '"offload/memory.hpp"')

    def test_accepts_everything_from_tests(self):
        self.assert_accepted("tests/offload/list.hpp", '"offload/detail/list.hpp"')

    def test_refuses_a_room_for_tools_from_its_own_module(self):
        self.write("comm/baselines/ring.hpp", HEADER)
        self.assert_accepted("tests/comm/ring.hpp", '"comm/baselines/ring.hpp"')
        self.assert_accepted("comm/baselines/tree.hpp", '"comm/baselines/ring.hpp"')
        self.assert_refused("comm/tree.hpp", '"comm/baselines/ring.hpp"',
                            "for tools and tests alone")

    def test_refuses_a_leaf_from_a_leaf(self):
        self.assert_refused("cpu_adam/adam.hpp", '"offload/memory.hpp"', "must not include offload")

    def test_refuses_a_leaf_from_base(self):
        self.assert_refused("runtime/base/log.hpp", '"offload/memory.hpp"', "must not include")

    def test_refuses_a_leaf_from_plan(self):
        self.assert_refused("runtime/plan/plan.hpp", '"offload/memory.hpp"', "must not include")

    def test_refuses_tools_from_the_engine(self):
        self.write("tools/cli/flags.hpp", HEADER)
        self.assert_refused("runtime/engine/run.hpp", '"tools/cli/flags.hpp"', "must not include")

    def test_refuses_private_headers_of_another_module(self):
        self.assert_refused("runtime/engine/run.hpp", '"offload/detail/list.hpp"', "private")

    def test_refuses_a_path_that_does_not_start_at_the_root(self):
        self.assert_refused("offload/pool.hpp", '"memory.hpp"', "no path from the repository root")

    def test_refuses_third_party_headers_away_from_home(self):
        for path, include in (
                ("offload/ring.hpp", "<liburing.h>"), ("nvme_swap/pool.hpp", "<tbb/task_arena.h>"),
                ("cpu_adam/link.hpp", "<cuda_runtime.h>"), ("offload/simd.hpp", "<immintrin.h>"),
                ("runtime/engine/gemm.hpp", "<oneapi/dnnl/dnnl.hpp>"),
                ("runtime/model/cpu.hpp", "<omp.h>"), ("runtime/model/cuda/x.hpp", "<nccl.h>"),
                ("comm/numa.hpp", "<hwloc.h>"), ("runtime/base/ranks.hpp", "<mpi.h>"),
                ("runtime/engine/flags.hpp", "<CLI/CLI.hpp>"), ("comm/a.hpp", "<gtest/gtest.h>")):
            with self.subTest(include):
                self.assert_refused(path, include, "belongs in")
                (self.tree / path).unlink()

    def test_accepts_third_party_headers_at_home(self):
        for path, include in (
                ("nvme_swap/uring.hpp", "<liburing.h>"), ("cpu_adam/pool.hpp", "<tbb/task.h>"),
                ("offload/cuda/link.hpp", "<cuda_runtime.h>"), ("offload/a.hpp", "<fmt/format.h>"),
                ("runtime/model/host/gemm.hpp", "<oneapi/dnnl/dnnl.hpp>"),
                ("runtime/base/numa.hpp", "<hwloc.h>"), ("tests/base/a.hpp", "<immintrin.h>")):
            with self.subTest(include):
                self.assert_accepted(path, include)

    def test_refuses_third_party_headers_that_nobody_knows(self):
        self.assert_refused("offload/a.hpp", "<boost/any.hpp>", "unknown")

    def test_refuses_a_second_home_of_the_ring(self):
        self.write("nvme_swap/a.hpp", HEADER + "#include <liburing.h>\n")
        self.assert_refused("nvme_swap/b.hpp", "<liburing.h>", "one home")

    def test_refuses_files_and_threads_in_the_plan(self):
        for include in ("<thread>", "<fstream>", "<sys/mman.h>", "<mutex>"):
            with self.subTest(include):
                self.assert_refused("runtime/plan/plan.hpp", include, "pure")

    def test_refuses_rooms_that_include_each_other(self):
        self.write("runtime/engine/run/claim.hpp", HEADER)
        self.write("runtime/engine/step/engine.hpp",
                   HEADER + '\n#include "runtime/engine/run/claim.hpp"\n')
        self.assert_accepted("runtime/engine/trainer.hpp", '"runtime/engine/step/engine.hpp"')
        self.write("runtime/engine/run/kept.hpp",
                   HEADER + '\n#include "runtime/engine/trainer.hpp"\n')
        findings = self.lint("layers")
        self.assertEqual([finding.split(":")[0] for finding in findings],
                         ["runtime/engine/run/kept.hpp", "runtime/engine/step/engine.hpp",
                          "runtime/engine/trainer.hpp"])
        self.assertIn("run includes trainer", findings[0])

    def test_refuses_rooms_of_a_room_that_include_each_other(self):
        embedded = "runtime/engine/embedded"
        self.write(f"{embedded}/values/values.hpp", HEADER)
        self.assert_accepted(f"{embedded}/passes/gate.hpp", f'"{embedded}/values/values.hpp"')
        self.write(f"{embedded}/values/state.hpp",
                   HEADER + f'\n#include "{embedded}/passes/gate.hpp"\n')
        findings = self.lint("layers")
        self.assertEqual(len(findings), 2, findings)
        self.assertIn("passes includes values", findings[0])

    def test_refuses_openmp_outside_the_host_model(self):
        self.write("cpu_adam/a.cpp", "#pragma omp parallel\n")
        self.assert_finds("layers", "cpu_adam/a.cpp:1", "OpenMP")

    def test_refuses_an_installed_header_that_includes_another(self):
        self.write("CMakeLists.txt", "add_subdirectory(offload)\n")
        self.write("offload/CMakeLists.txt",
                   "spillway_module(offload HEADERS memory.hpp\n  a.hpp)\n")
        self.write("offload/b.hpp", HEADER)
        self.assert_accepted("offload/a.hpp", '"offload/memory.hpp"')
        self.assert_refused("offload/a.hpp", '"offload/b.hpp"', "not installed")
        (self.tree / "offload/a.hpp").unlink()
        self.assert_finds("layers", "offload/a.hpp:1", "does not exist")


class Sizes(LintTest):
    def test_accepts_the_limits_themselves(self):
        self.write("offload/a.cpp", "//" + " " * 98 + "\n" + "\n" * 399)
        self.assert_clean("sizes")

    def test_finds_a_long_file(self):
        self.write("offload/a.cpp", "\n" * 401)
        self.assert_finds("sizes", "offload/a.cpp:401", "401 lines")

    def test_finds_a_long_line_in_sources_and_scripts(self):
        for name in ("offload/a.cpp", "offload/CMakeLists.txt", "tools/a.py"):
            with self.subTest(name):
                self.write(name, "#" + "x" * 100 + "\n")
                self.assert_finds("sizes", f"{name}:1", "101 columns")
                (self.tree / name).unlink()

    def test_counts_characters_and_not_bytes(self):
        self.write("offload/a.cpp", "// " + "\N{MULTIPLICATION SIGN}" * 97 + "\n")
        self.assert_clean("sizes")


class Rules(LintTest):
    def setUp(self):
        super().setUp()
        self.write("CMakeLists.txt", "add_subdirectory(offload)\nadd_subdirectory(tests/offload)\n"
                                     "add_subdirectory(tools)\n")

    def test_finds_sources_that_nothing_builds(self):
        self.write("offload/CMakeLists.txt", "spillway_module(offload SOURCES pool.cpp)  # a.cpp\n")
        self.write("offload/pool.cpp", "")
        self.assert_clean("rules")
        self.write("offload/a.cpp", "")
        self.assert_finds("rules", "offload/a.cpp:1", "nothing that CMake reads")

    def test_accepts_sources_that_an_included_cmake_file_lists(self):
        self.write("offload/CMakeLists.txt", "include(io.cmake)")
        self.write("offload/io.cmake", "set(sources\n  a.cpp)")
        self.write("offload/a.cpp", "")
        self.assert_clean("rules")
        self.write("offload/CMakeLists.txt", "")
        self.assert_finds("rules", "offload/a.cpp:1", "nothing that CMake reads")

    def test_does_not_count_a_folder_that_nothing_adds(self):
        self.write("offload/host/CMakeLists.txt", "spillway_module(host SOURCES a.cpp)")
        self.write("offload/host/a.cpp", "")
        self.assert_finds("rules", "offload/host/a.cpp:1", "nothing that CMake reads")

    def test_finds_tests_that_nothing_runs(self):
        for name in ("tests/offload/pool_test.cpp", "tests/offload/peer_test.py"):
            with self.subTest(name):
                self.write("tests/offload/CMakeLists.txt", "")
                self.write(name, "namespace spillway::pool_test {\n")
                self.assert_finds("rules", f"{name}:1", "nothing that CMake reads")
                self.write("tests/offload/CMakeLists.txt", pathlib.Path(name).name)
                self.assert_clean("rules")
                (self.tree / name).unlink()

    def test_does_not_take_a_longer_name_for_the_file(self):
        self.write("offload/CMakeLists.txt", "spillway_module(offload SOURCES host/pool.cpp)")
        self.write("offload/host/pool.cpp", "")
        self.write("offload/pool.cpp", "")
        self.assert_finds("rules", "offload/pool.cpp:1", "nothing that CMake reads")

    def test_finds_unfinished_work(self):
        for word in ("TO" "DO", "FIX" "ME", "XX" "X"):
            with self.subTest(word):
                self.write("docs/a.md", f"later ({word})\n")
                self.assert_finds("rules", "docs/a.md:1", "unfinished")

    def test_finds_environment_variables_read_below_the_tools(self):
        self.write("tools/CMakeLists.txt", "a.cpp")
        self.write("tools/a.cpp", 'auto a = std::getenv("A");\n')
        self.assert_clean("rules")
        self.write("offload/a.hpp", HEADER + 'inline auto a = std::getenv("A");\n')
        self.assert_finds("rules", "offload/a.hpp:3", "environment")

    def test_finds_arguments_that_are_bool_in_the_engine(self):
        for text, found in (("void set(bool a);", True), ("void set(int a, bool b = false);", True),
                            ("         bool b) const;", True), ("bool is_set(int a);", False),
                            ("  bool set = false;", False)):
            with self.subTest(text):
                self.write("runtime/engine/a.hpp", HEADER + text + "\n")
                if found:
                    self.assert_finds("rules", "runtime/engine/a.hpp:3", "no bool")
                else:
                    self.assert_clean("rules")

    def test_finds_words_of_the_program_that_pass_the_console_by(self):
        self.write("tools/CMakeLists.txt", "cli/a.cpp cli/console.cpp")
        for word in ('fmt::print("a");', 'std::cout << 1;', 'puts("a");'):
            with self.subTest(word):
                self.write("tools/cli/console.cpp", word + "\n")
                self.write("tools/cli/a.cpp", 'answer("a");\n')
                self.assert_clean("rules")
                self.write("tools/cli/a.cpp", word + "\n")
                self.assert_finds("rules", "tools/cli/a.cpp:1", "console.hpp")

    def test_finds_json_that_another_reader_reads(self):
        self.write("tests/a.hpp", HEADER + "json::parse(x);\n")
        self.assert_clean("rules")
        self.write("offload/a.hpp", HEADER + "nlohmann::json::parse(x);\n")
        self.assert_finds("rules", "offload/a.hpp:3", "parse_json")

    def test_finds_locks_that_no_compiler_checks(self):
        for word in ("mutex m;", "lock_guard l(m);", "unique_lock l(m);", "scoped_lock l(m, n);",
                     "condition_variable c;"):
            with self.subTest(word):
                self.write("tests/a.hpp", HEADER + f"std::{word}\n")
                self.write("runtime/base/mutex.hpp", HEADER + f"std::{word}\n")
                self.write("offload/a.hpp", HEADER + "std::once_flag once;\n")
                self.assert_clean("rules")
                self.write("offload/a.hpp", HEADER + f"std::{word}\n")
                self.assert_finds("rules", "offload/a.hpp:3", "mutex.hpp")

    def test_finds_flags_that_change_results(self):
        for flag in ("-ffast-math", "-march=native", "-mavx2"):
            with self.subTest(flag):
                self.write("CMakeLists.txt", f"add_compile_options({flag})\n")
                self.assert_finds("rules", "CMakeLists.txt:1", "flags")

    def test_finds_headers_without_comment_or_guard(self):
        self.write("offload/a.hpp", "#pragma once\n")
        self.assert_finds("rules", "offload/a.hpp:1", "comment")
        self.write("offload/a.hpp", "// What it is.\n")
        self.assert_finds("rules", "offload/a.hpp:1", "pragma once")

    def test_finds_a_backend_with_too_many_operations(self):
        def backend(count):
            operations = "".join(f"  virtual void f{i}() = 0;\n" for i in range(count))
            return f"{HEADER}class A {{\n  virtual ~A() = default;\n{operations}}};\n"
        self.write("offload/a.hpp", backend(12) + "class B {\n  virtual void g() = 0;\n};\n")
        self.assert_clean("rules")
        self.write("offload/a.hpp", backend(13))
        self.assert_finds("rules", "offload/a.hpp:17", "A has more than 12")

    def test_finds_bool_parameters_of_installed_headers(self):
        self.write("offload/CMakeLists.txt", "spillway_module(offload HEADERS a.hpp PUBLIC b)")
        good = "void check(bool condition);\nbool f(int a);  // (bool b)\nstruct A { bool c; };\n"
        self.write("offload/a.hpp", HEADER + good)
        self.write("offload/b.hpp", HEADER + "void f(bool first);\n")
        self.assert_clean("rules")
        for bad in ("void f(bool first);", "void f(int a, const bool b = false,", "  bool c)"):
            with self.subTest(bad):
                self.write("offload/a.hpp", HEADER + bad + "\n")
                self.assert_finds("rules", "offload/a.hpp:3", "enum class")

    def test_finds_comments_that_are_no_sentences_or_cite_what_is_missing(self):
        self.write("offload/a.hpp", HEADER + "/// Returns what memory.hpp and docs say. Often.\n")
        self.assert_clean("rules")
        for bad, words in (("/// Of a tile: its bytes.", "sentence"),
                           ("/// Is the number of tiles.", "no subject"),
                           ("int a;  ///< counts tiles", "no subject"),
                           ("int a;  // see design.md", "no file of this repository"),
                           ("// detail/memory.hpp has it.", "no file of this repository")):
            with self.subTest(bad):
                self.write("offload/a.hpp", HEADER + bad + "\n")
                self.assert_finds("rules", "offload/a.hpp:3", words)

    def test_finds_tests_that_have_no_namespace_of_their_own(self):
        self.write("tests/offload/CMakeLists.txt", "spillway_test(a SOURCES a_test.cpp)\n")
        good = "namespace spillway::a_test {\nnamespace {\nint a;\n}\n}\n"
        self.write("tests/offload/a_test.cpp", good)
        self.assert_clean("rules")
        for bad, line in (("int a;\n", 1), (good.replace("a_test", "b_test"), 1),
                          ("namespace {\nint a;\n}\n", 1), (good + "namespace spillway {\n", 6)):
            with self.subTest(bad):
                self.write("tests/offload/a_test.cpp", bad)
                self.assert_finds("rules", f"tests/offload/a_test.cpp:{line}", "ends in ::a_test")

    def test_finds_headers_of_c_and_aliases_that_nothing_uses(self):
        self.write("offload/a.cpp", HEADER + "#include <cstdio>\nnamespace fs = std::filesystem;\n"
                                             "fs::path root();\n")
        self.write("offload/CMakeLists.txt", "spillway_module(offload SOURCES a.cpp)")
        self.assert_clean("rules")
        for bad, words in (("#include <stdio.h>", "header of its own"),
                           ("namespace other = std::filesystem;", "nothing uses the alias other")):
            with self.subTest(bad):
                self.write("offload/a.cpp", HEADER + bad + "\n")
                self.assert_finds("rules", "offload/a.cpp:3", words)


class Command(LintTest):
    def run_all(self):
        return subprocess.run(
            [sys.executable, "-B", str(ROOT / "tools/lint/run"), "--root", str(self.tree),
             "layers", "sizes", "rules"], capture_output=True, text=True, check=False)

    def test_exits_with_the_verdict_and_prints_the_findings(self):
        done = self.run_all()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.write("offload/a.hpp", HEADER + "#include <nccl.h>\n")
        done = self.run_all()
        self.assertEqual(done.returncode, 1)
        self.assertIn("offload/a.hpp:3: <nccl.h> belongs in comm/nccl only\n", done.stdout)


if __name__ == "__main__":
    unittest.main()
