"""What the tests of the program from outside share: data, a tiny model and its configuration.
The program's path is the last argument of a test script. Names of cases may come before it, or be
in SPILLWAY_TEST_CASES."""
import os
import pathlib
import sys
import tempfile
import unittest

from program_folder import LLAMA, MODEL, SECONDS, TEXT, ProgramFolder

PROGRAM = str(pathlib.Path(sys.argv.pop()).resolve())
ROOT = pathlib.Path(__file__).resolve().parents[2]
MACHINES = ROOT / "docs" / "machines"
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
    "spillway": {"context": 16, "seed": 3, "tile_parameters": 8192}}
# Of the disk, a start measures as much as fits into this memory.
LITTLE_MEMORY = {"device_memory": "4MiB", "host_memory": "4MiB"}
os.environ.setdefault("SPILLWAY_DEVICE", "host")
__all__ = ["CONFIG", "LLAMA", "MACHINES", "MODEL", "PROGRAM", "ROOT", "SECONDS",
           "ProgramTestCase", "main"]


class ProgramTestCase(ProgramFolder, unittest.TestCase):
    program = PROGRAM

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        # The user's machine profile may be another version's, which the program then says.
        os.environ["XDG_CACHE_HOME"] = str(self.folder / "cache")
        self.write("text.txt", TEXT)
        self.write("model.json", MODEL)
        self.configure()
        self.succeed("data", "text.txt", "--out", "data", "--tokenizer", "bytes")

    def _formatMessage(self, msg, standardMsg):
        """Ends each message of a failure with what the last command said."""
        return super()._formatMessage(msg, f"{standardMsg}\n{self.told}")

    def configure(self, options=None, **section):
        """Writes the configuration of runs with other options, and other ones of `spillway`."""
        section = CONFIG["spillway"] | LITTLE_MEMORY | section
        self.write("train.json", {**CONFIG, **(options or {}), "spillway": section})

    def refused(self, *arguments, code=2, **options) -> str:
        """Returns what the program says when it ends with that exit code."""
        done = self.run_program(*arguments, **options)
        self.assertEqual(done.returncode, code)
        return done.stderr

    def start(self, *arguments, **options):
        child = super().start(*arguments, **options)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        return child

    def train(self, run, steps, *more) -> list:
        return ["train", "train.json", "--model", "model.json", "--data", "data", "--run", run,
                "--steps", str(steps), *map(str, more)]


def main():
    unittest.main(argv=[*sys.argv, *os.environ.get("SPILLWAY_TEST_CASES", "").split()])
