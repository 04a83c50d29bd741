"""What the tests of `mpirun -n N spillway train` share: data, a tiny model, and runs of it.
A test that uses it is started as TEST.py SPILLWAY LAUNCHER..., where LAUNCHER is mpirun or
start_ranks, and -n. SPILLWAY_TEST_CASES may name the cases that are run."""
import array
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

SPILLWAY, *LAUNCHER = sys.argv[1:]
MODEL = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 64,
         "vocab_size": 256, "max_position_embeddings": 32, "rms_norm_eps": 1e-5,
         "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False}


def config(stage, batch=8, **own):
    return {"train_batch_size": batch, "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": stage},
            "spillway": {"context": 16, "device": "host", "threads": 1, "compute_threads": 1,
                         "sum_order": "fixed", "eval_every": 5, "state_home": "nvme",
                         "commit_every": 1} | own}


def start(command):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            stdin=subprocess.DEVNULL, encoding="utf-8")


class JobTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        data = self.path / "data"
        data.mkdir()
        numbers = random.Random(3)
        tokens = array.array("H", (numbers.randrange(256) for _ in range(4000)))
        (data / "train.bin").write_bytes(tokens.tobytes())
        (data / "val.bin").write_bytes(tokens[:200].tobytes())
        (data / "meta.json").write_text(json.dumps({"dtype": "uint16", "vocab_size": 256}))
        (self.path / "model.json").write_text(json.dumps(MODEL))

    def arguments(self, run, options, steps, *more):
        name = self.path / f"{len(list(self.path.iterdir()))}.json"
        name.write_text(json.dumps(options))
        model = [] if "--from" in more else ["--model", self.path / "model.json"]
        return [SPILLWAY, "train", name, *model, "--data", self.path / "data",
                "--run", self.path / run, "--steps", str(steps), *more]

    def launch(self, run, options, steps, *more, ranks):
        launcher = [*LAUNCHER, str(ranks)] if ranks > 1 else []
        return start([*launcher, *self.arguments(run, options, steps, *more)])

    def train(self, *arguments, ranks):
        job = self.launch(*arguments, ranks=ranks)
        output = job.communicate(timeout=300)[0]
        return job.returncode, output

    def succeed(self, *arguments, ranks=2):
        status, output = self.train(*arguments, ranks=ranks)
        self.assertEqual(status, 0, output)

    def fail_with(self, text, *arguments, ranks=2):
        status, output = self.train(*arguments, ranks=ranks)
        self.assertNotEqual(status, 0, output)
        self.assertRegex(output, text)

    def metrics(self, run):
        """What every run of the same job has in common, step by step: of each whole line."""
        file = self.path / run / "metrics.jsonl"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        return [{key: value for key, value in json.loads(line).items()
                 if key not in ("seconds", "exposed")} for line in lines]

    def weights(self, run):
        out = self.path / "exported"
        subprocess.run([SPILLWAY, "export", self.path / run, out], check=True,
                       capture_output=True)
        weights = (out / "model.safetensors").read_bytes()
        shutil.rmtree(out)
        return weights


def main():
    unittest.main(argv=[sys.argv[0], *os.environ.get("SPILLWAY_TEST_CASES", "").split()])
