"""tools/gpu-bundle packs a build, and tools/gpu-run works from the unpacked bundle alone, as far as
it goes without a GPU. usage: gpu_bundle_test.py BUILD_DIRECTORY"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop())


def run(*command, **options) -> subprocess.CompletedProcess:
    return subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False, **options)


class GpuBundle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        archive = cls.folder / "bundle.tar.xz"
        cls.extensions = list(BUILD.glob("python/spillway/_native*.so"))
        named = []
        for extension in cls.extensions:  # the build's own passes for that of another Python
            named = ["--extension", shutil.copy(extension, cls.folder / "_native.abi3.so")]
        made = run(ROOT / "tools" / "gpu-bundle", "--build", BUILD, "--out", archive, *named)
        if made.returncode != 0:
            raise AssertionError(made.stdout)
        cls.size = archive.stat().st_size
        with tarfile.open(archive) as packed:
            packed.extractall(cls.folder)
        cls.bundle = cls.folder / "spillway-gpu"
        # Nothing that this machine's environment says about libraries.
        cls.environment = {key: value for key, value in os.environ.items()
                           if not key.startswith("LD_")}

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def gpu_run(self, *arguments) -> subprocess.CompletedProcess:
        return run(self.bundle / "tools" / "gpu-run", "--out", self.folder / "results", *arguments,
                   cwd=self.folder, env=self.environment)

    def results(self) -> dict:
        return json.loads((self.folder / "results" / "results.json").read_text())

    def has_gpu(self) -> bool:
        return pathlib.Path("/dev/nvidiactl").exists()

    def test_the_archive_is_small_and_holds_the_program_and_the_gpu_tests(self):
        self.assertLessEqual(self.size, 50_000_000)
        names = {path.name for path in (self.bundle / "bin").iterdir()}
        self.assertIn("spillway", names)
        self.assertIn("offload_gpu_test", names)
        self.assertFalse((self.bundle / "lib" / "libc.so.6").exists())

    def test_the_package_is_there_with_its_libraries_and_the_extensions_that_were_named(self):
        if not self.extensions:
            self.skipTest("this machine has no nanobind, and the build no Python package")
        package = self.bundle / "python" / "spillway"
        self.assertEqual({path.name for path in package.glob("_native*.so")},
                         {self.extensions[0].name, "_native.abi3.so"})
        self.assertTrue((package / "torch" / "streaming.py").exists())
        needed = run("ldd", package / "_native.abi3.so",
                     env=self.environment | {"LD_LIBRARY_PATH": str(self.bundle / "lib")}).stdout
        self.assertNotIn("not found", needed)
        self.assertIn(str(self.bundle / "lib"), needed)
        peers = json.loads((self.bundle / "bundle.json").read_text())["peers"]
        self.assertIn({"name": "python.gpu", "command": ["peers/python/gpu_check.py"]}, peers)

    def test_the_steps_are_listed_with_what_attends_first_and_fit_into_ten_minutes(self):
        lines = self.gpu_run("--list").stdout.splitlines()
        self.assertTrue(lines[0].startswith("attention.kind"), lines)
        names = [line.split()[0] for line in lines]
        self.assertLess(names.index("test.offload_gpu_test"), names.index("bench.step.557k.128gib"))
        self.assertTrue(any(line.startswith("bench.step") for line in lines), lines)
        self.assertTrue(any(line.startswith("memcheck.") for line in lines), lines)
        self.assertLessEqual(max(int(line.split()[1]) for line in lines), 600)

    def test_without_a_gpu_every_step_says_that_it_was_skipped(self):
        if self.has_gpu():
            self.skipTest("this machine has a GPU")
        ran = self.gpu_run("--again")
        self.assertEqual(ran.returncode, 0, ran.stdout)
        results = self.results()
        self.assertEqual(results["left"], [])
        for name, step in results["steps"].items():
            self.assertEqual((step["status"], step["reason"]), ("skipped", "no GPU"), name)
        self.assertEqual(results["steps"]["test.offload_gpu_test"]["rc"], 0)
        table = (self.folder / "results" / "results.md").read_text()
        self.assertIn("| test.offload_gpu_test | skipped |", table)
        files = [path for path in (self.folder / "results").rglob("*") if path.is_file()]
        self.assertLessEqual(len(files), 3)

    def test_a_call_without_time_leaves_the_rest_to_the_next_which_does_not_repeat(self):
        out = ("--out", self.folder / "resumed", "--only", "test.offload_gpu_test")
        first = self.gpu_run(*out, "--seconds", "5")
        self.assertEqual(first.returncode, 3, first.stdout)
        second = self.gpu_run(*out, "--seconds", "590")
        self.assertEqual(second.returncode, 0, second.stdout)
        self.assertIn("test.offload_gpu_test", second.stdout)
        third = self.gpu_run(*out)
        self.assertEqual(third.returncode, 0, third.stdout)
        self.assertEqual(len(third.stdout.splitlines()), 1, third.stdout)  # the summary alone

    def test_a_step_that_fails_fails_the_run_and_is_told_in_the_table(self):
        # What follows from a fault comes after it, but for a program that sums up in JSON.
        json_of_error = json.dumps({"error": {"message": "as wanted"}}, indent=1)
        for name, printed in (("first", "error: as wanted\nerror: what follows"),
                              ("json", f"error: what follows\n{json_of_error}")):
            with self.subTest(name):
                table = self.table_of_a_broken_test(f"{name}_gpu_test", printed)
                self.assertRegex(table, "exit status 7: (error: )?as wanted")

    def table_of_a_broken_test(self, name, printed):
        program = self.bundle / "bin" / name
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{printed}\nEND\nexit 7\n")
        program.chmod(0o755)
        manifest = self.bundle / "bundle.json"
        original = manifest.read_text()
        bundle = json.loads(original)
        bundle["tests"].append(program.name)
        manifest.write_text(json.dumps(bundle))
        try:
            ran = self.gpu_run("--out", self.folder / name, "--only", f"test.{name}")
        finally:
            manifest.write_text(original)
        self.assertEqual(ran.returncode, 1, ran.stdout)
        return (self.folder / name / "results.md").read_text()


if __name__ == "__main__":
    unittest.main()
