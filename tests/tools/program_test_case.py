"""What the tests of the program from outside share: a text, a tiny model and a way to run commands.
The program's path is the last argument of the test script."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = str(pathlib.Path(sys.argv.pop()).resolve())
ROOT = pathlib.Path(__file__).resolve().parents[2]
# Long enough for a sanitizer's build on a busy machine; whoever waits for a pipe waits for ever.
SECONDS = 240

MODEL = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256,
    "n_positions": 16, "n_embd": 48, "n_layer": 2, "n_head": 2,
    "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.0,
    "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": True}
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
    "spillway": {"context": 16, "seed": 3, "tile_parameters": 8192}}
# Of the disk, a start measures as much as fits into this memory.
LITTLE_MEMORY = {"device_memory": "4MiB", "host_memory": "4MiB"}


class ProgramTestCase(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        # The user's machine profile may be another version's, which the program then says.
        os.environ["XDG_CACHE_HOME"] = str(self.folder / "cache")
        text = "".join(f"Blessed are they that mourn, for line {i * i % 97}.\n" for i in range(400))
        self.write("text.txt", text)
        self.write("model.json", json.dumps(MODEL))
        self.write("train.json", json.dumps({**CONFIG,
                                             "spillway": CONFIG["spillway"] | LITTLE_MEMORY}))
        done = self.run_program("data", "text.txt", "--out", "data", "--tokenizer", "bytes")
        self.assertEqual(done.returncode, 0, done.stderr)

    def write(self, name, text) -> pathlib.Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def run_program(self, *arguments, **options) -> subprocess.CompletedProcess:
        for stream in ("stdout", "stderr"):
            options.setdefault(stream, subprocess.PIPE)
        return subprocess.run([PROGRAM, *map(str, arguments)], cwd=self.folder, check=False,
                              encoding="utf-8", errors="surrogateescape", timeout=SECONDS,
                              **options)

    def train(self, run, steps, *more) -> list:
        return ["train", "train.json", "--model", "model.json", "--data", "data", "--run", run,
                "--steps", str(steps), *map(str, more)]

    def metrics(self, run) -> list:
        path = self.folder / run / "metrics.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines(keepends=True)
                if line.endswith("\n")]
