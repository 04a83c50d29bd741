"""What the tests of `mpirun -n N spillway train` share: a tiny model, and jobs that train it.
A test that uses it is started as TEST.py LAUNCHER... SPILLWAY, where LAUNCHER is mpirun or
start_ranks, and -n."""
import os
import pathlib
import shlex
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
from program_test_case import LLAMA, PROGRAM, ProgramTestCase, main

LAUNCHER = sys.argv[1:]
del sys.argv[1:]
__all__ = ["LAUNCHER", "JobTest", "config", "main", "start"]


def config(stage, batch=8, **own):
    return {"train_batch_size": batch, "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": stage},
            "spillway": {"context": 16, "device": "host", "threads": 1, "compute_threads": 1,
                         "sum_order": "fixed", "eval_every": 5, "state_home": "nvme",
                         "commit_every": 1} | own}


def start(command):
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, encoding="utf-8")


class JobTest(ProgramTestCase):
    def setUp(self):
        super().setUp()
        os.truncate(self.path("data/val.bin"), 400)  # an evaluation is soon over
        self.write("model.json", LLAMA | {"hidden_size": 32, "num_key_value_heads": 4,
                                          "intermediate_size": 64})

    def arguments(self, run, options, steps, *more):
        name = self.write(f"{len(list(self.folder.iterdir()))}.json", options)
        model = [] if "--from" in more else ["--model", self.path("model.json")]
        return [PROGRAM, "train", name, *model, "--data", self.path("data"),
                "--run", self.path(run), "--steps", str(steps), *more]

    def launch(self, run, options, steps, *more, ranks):
        launcher = [*LAUNCHER, ranks] if ranks > 1 else []
        return start([*launcher, *self.arguments(run, options, steps, *more)])

    def job(self, *arguments, ranks):
        """Returns the exit code of a job, and what its ranks said."""
        job = self.launch(*arguments, ranks=ranks)
        output = job.communicate(timeout=300)[0]
        self.told = f"$ {shlex.join(job.args)}\n{output}exit code {job.returncode}"
        return job.returncode, output

    def trained(self, *arguments, ranks=2) -> str:
        status, output = self.job(*arguments, ranks=ranks)
        self.assertEqual(status, 0)
        return output

    def fail_with(self, text, *arguments, ranks=2):
        status, output = self.job(*arguments, ranks=ranks)
        self.assertNotEqual(status, 0)
        self.assertRegex(output, text)
