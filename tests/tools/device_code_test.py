"""What nvcc makes of the kernels, for each generation of GPUs that the program has code for: all
are there, and registers suffice. usage: device_code_test.py BUILD_DIRECTORY

Every source of kernels is compiled once more as the build does it, with what ptxas says of it.
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(sys.argv.pop()).resolve()
GENERATIONS = {"sm_80", "sm_90", "sm_100", "sm_120"}
#: Bytes of a thread. ptxas spills up to 24, in the backward pass of norms of unaligned rows.
MOST_SPILLED = 64
KERNEL = re.compile(r"Compiling entry function '(\w+)' for '(sm_\d+)'.*?"
                    r"(\d+) bytes stack frame, (\d+) bytes spill stores", re.DOTALL)


def sources():
    """How each source of kernels is compiled, but for its target."""
    for command in json.loads((BUILD / "compile_commands.json").read_text()):
        words = shlex.split(command["command"])
        if command["file"].endswith(".cu") and any("nvcc" in word for word in words):
            yield pathlib.Path(command["file"]).stem, words[:words.index("-x")], command["file"]


def kernels_of(words, source):
    """What ptxas says: name, generation, bytes of stack and spilled bytes of each."""
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run([*words, "-Xptxas=-v", "-c", "-x", "cu", source, "-o",
                               f"{scratch}/kernels.o"], cwd=BUILD, capture_output=True, text=True,
                              check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return [(name, generation, *map(int, numbers))
            for name, generation, *numbers in KERNEL.findall(done.stderr)]


class DeviceCode(unittest.TestCase):
    def test_every_kernel_has_code_for_each_generation_and_keeps_to_its_registers(self):
        found = list(sources())
        self.assertGreaterEqual(len(found), 8)
        for name, words, source in found:
            kernels = kernels_of(words, source)
            for generation in GENERATIONS:
                with self.subTest(source=name, generation=generation):
                    own = [kernel for kernel in kernels if kernel[1] == generation]
                    self.assertTrue(own)
                    self.assertEqual(len(own) * len(GENERATIONS), len(kernels))
                    for kernel, _, stack, spilled in own:
                        self.assertLessEqual(spilled, MOST_SPILLED, kernel)
                        self.assertLessEqual(stack, MOST_SPILLED, kernel)


if __name__ == "__main__":
    unittest.main()
