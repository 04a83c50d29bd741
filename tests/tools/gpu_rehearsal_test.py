"""Every step of tools/gpu-run, in tiny sizes on the emulated CUDA: what the first minutes on a GPU
would tell of flags, names and files. usage: gpu_rehearsal_test.py BUILD_DIRECTORY"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop()).resolve()
PROGRAMS = {"spillway": "tests/support/cuda_emulation/spillway_emulated"} | {
    f"{module}_gpu_test": f"tests/{module}/{module}_emulated_test"
    for module in ("offload", "cpu_adam", "comm", "model", "engine")}
PEERS = [{"name": f"llama_peer_gpu_test_{dtype}", "command": [
    "peers/engine/peer_llama.py", "bin/spillway", "--dtype", dtype, "--device", "cuda"]}
         for dtype in ("fp32", "bf16")]
HAS_PACKAGE = any(BUILD.glob("python/spillway/_native*.so"))
PACKAGE = [{"name": "python.gpu", "command": ["peers/python/gpu_check.py"]}] * HAS_PACKAGE
# What compute-sanitizer 2025 takes of its own, and then a program whose filter matches tests.
SANITIZER = """#!/bin/sh
[ "$1" = --tool ] || exit 2
case $2 in memcheck|racecheck|initcheck) ;; *) exit 2 ;; esac
tool=$2
shift 2
if [ "$1" = --kernel-name ]; then
  [ $tool = racecheck ] && [ "$2" = kns=spillway ] || exit 2
  shift 2
elif [ $tool = racecheck ]; then
  exit 2
fi
[ "$1" = --error-exitcode ] && [ "$2" = 99 ] || exit 2
shift 2
"$@" --gtest_list_tests | grep -q '^  '
"""


class Rehearsal(unittest.TestCase):
    def test_every_step_passes_on_the_emulated_device(self):
        with tempfile.TemporaryDirectory() as temporary:
            home = pathlib.Path(temporary)
            for name, path in PROGRAMS.items():
                (home / "bin").mkdir(exist_ok=True)
                (home / "bin" / name).symlink_to(BUILD / path)
            (home / "peers/engine").mkdir(parents=True)
            shutil.copy(ROOT / "tests/engine/peer_llama.py", home / "peers/engine")
            (home / "peers/python").mkdir()
            shutil.copy(ROOT / "tests/python/gpu_check.py", home / "peers/python")
            (home / "python").symlink_to(BUILD / "python")
            (home / "tools").mkdir()
            for name in ("gpu-run", "gpu_steps.py"):
                shutil.copy(ROOT / "tools" / name, home / "tools")
            (home / "bundle.json").write_text(json.dumps({
                "commit": "rehearsed", "tests": [n for n in PROGRAMS if n != "spillway"],
                "peers": PEERS + PACKAGE}))
            sanitizer = home / "compute-sanitizer"
            sanitizer.write_text(SANITIZER)
            sanitizer.chmod(0o755)
            ran = subprocess.run(
                [sys.executable, "-B", home / "tools/gpu-run", "--rehearse", "--out", home / "out"],
                text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                env=os.environ | {"PATH": f"{home}:{os.environ['PATH']}"})
            self.assertTrue((home / "out/results.json").exists(), ran.stdout)
            steps = json.loads((home / "out/results.json").read_text())["steps"]
            for name, step in steps.items():
                self.assertEqual(step["status"], "passed", f"{name}: {step['output']}")
            self.assertEqual(ran.returncode, 0, ran.stdout)
            self.check_order(list(steps))
            self.check_figures(steps)

    def check_order(self, names):
        first = ["attention.kind", "bench.gpu", "bench.gpu.any-order", "calibrate.products",
                 "calibrate.plan", "test.offload_gpu_test"]
        self.assertEqual(names[:len(first)], first)
        speed = names.index("bench.step.557k.128gib")
        for peer in PEERS:
            self.assertLess(names.index(f"peer.{peer['name']}"), speed)
        self.assertLess(speed, names.index("memcheck.model_gpu_test"))
        self.assertNotIn("initcheck.engine_gpu_test", names)

    def check_figures(self, steps):
        self.assertIs(steps["bench.gpu"]["json"]["deterministic"], True)
        self.assertIs(steps["bench.gpu.any-order"]["json"]["deterministic"], False)
        self.assertGreater(steps["bench.step.557k.128gib"]["json"]["tokens_per_second"], 0)
        if HAS_PACKAGE:
            self.assertEqual(len(steps["peer.python.gpu"]["json"]["seconds"]), 7)
        self.assertEqual(steps["peer.llama_peer_gpu_test_bf16"]["json"]["steps"], 1)
        self.assertIn("--host-memory 110GB",
                      " ".join(map(str, steps["bench.step.557k.128gib"]["command"])))


if __name__ == "__main__":
    unittest.main()
