"""`mpirun -n 2 spillway train`: the stages of ZeRO agree with each other and with one rank, a job
goes on after any of its ranks was killed, and what cannot work says why.
usage: mpi_training_test.py SPILLWAY MPIRUN_COMMAND..."""
import array
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SPILLWAY, *MPIRUN = sys.argv[1:]
RANKS = 2
SECONDS = 30  # within which a job ends whose rank has died
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


class Training(unittest.TestCase):
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

    def start(self, command):
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                stdin=subprocess.DEVNULL, encoding="utf-8")

    def train(self, run, options, steps, *more, ranks=RANKS):
        launcher = [*MPIRUN, str(ranks)] if ranks > 1 else []
        job = self.start([*launcher, *self.arguments(run, options, steps, *more)])
        output = job.communicate(timeout=120)[0]
        return job.returncode, output

    def succeed(self, *arguments, **more):
        status, output = self.train(*arguments, **more)
        self.assertEqual(status, 0, output)

    def fail_with(self, text, *arguments, **more):
        status, output = self.train(*arguments, **more)
        self.assertNotEqual(status, 0, output)
        self.assertRegex(output, text)

    def metrics(self, run):
        lines = (self.path / run / "metrics.jsonl").read_text().splitlines()
        return [{key: value for key, value in json.loads(line).items()
                 if key not in ("seconds", "exposed")} for line in lines]

    def weights(self, run):
        out = self.path / "exported"
        subprocess.run([SPILLWAY, "export", run, out], check=True, capture_output=True)
        weights = (out / "model.safetensors").read_bytes()
        shutil.rmtree(out)
        return weights

    def test_every_stage_has_the_metrics_of_one_rank(self):
        self.succeed("one", config(0), 6, ranks=1)
        expected = self.metrics("one")
        self.assertEqual(len(expected), 6)
        for stage in range(4):
            self.succeed(f"stage{stage}", config(stage), 6)
            self.assertEqual(self.metrics(f"stage{stage}"), expected, stage)
            folder = self.path / f"stage{stage}" / "rank-0001"
            self.assertTrue((folder / "manifest.json").exists())
            self.assertFalse((folder / "metrics.jsonl").exists())

    def test_a_killed_rank_ends_the_job_and_it_resumes_with_the_same_bits(self):
        steps = 40
        for stage, own in [(1, {}), (3, {"state_home": "host", "commit_every": 3})]:
            options = config(stage, **own, seed=stage)
            self.succeed("whole", options, steps)
            for victim in range(RANKS):
                self.kill("killed", victim, options, steps)
                self.succeed("killed", options, steps, "--resume")
                self.assertEqual(self.metrics("killed"), self.metrics("whole"))
                shutil.rmtree(self.path / "killed")
            shutil.rmtree(self.path / "whole")

    def kill(self, run, victim, options, steps):
        job = self.start([*MPIRUN, str(RANKS), *self.arguments(run, options, steps)])
        metrics = self.path / run / "metrics.jsonl"
        while not (metrics.exists() and metrics.read_text().count("\n") > 9):
            self.assertIsNone(job.poll(), "the job ended too early")
            time.sleep(0.001)
        folder = self.path / run / (f"rank-{victim:04}" if victim else "")
        os.kill(int((folder / "lock").read_text()), signal.SIGKILL)
        begin = time.monotonic()
        output = job.communicate(timeout=120)[0]
        self.assertLess(time.monotonic() - begin, SECONDS)
        self.assertNotEqual(job.returncode, 0)
        self.assertRegex(output, rf"(?i)rank:? {victim}\b")

    def test_a_job_goes_on_from_the_last_step_that_every_rank_has_committed(self):
        options = config(1, eval_every=1)
        self.succeed("whole", options, 9)
        self.succeed("run", options, 5)
        shutil.copytree(self.path / "run", self.path / "five")
        self.succeed("run", options, 6, "--resume")
        shutil.copytree(self.path / "run", self.path / "six")
        for behind in range(RANKS):
            with self.subTest(behind=behind):
                self.mix("six", "five", behind)
                self.succeed("run", options, 9, "--resume")
                self.assertEqual(self.metrics("run"), self.metrics("whole"))
        shutil.rmtree(self.path / "six")
        (self.path / "run").rename(self.path / "six")  # which has nine steps now
        self.mix("six", "five", 1)
        self.fail_with("is to go on from step 5, and its newest commit is of step 9",
                       "run", options, 9, "--resume")

    def mix(self, ahead, behind, rank):
        """Makes `run` what a kill leaves when `rank` has not committed the last step."""
        run = self.path / "run"
        shutil.rmtree(run, ignore_errors=True)
        first = behind if rank == 0 else ahead
        other = behind if rank == 1 else ahead
        shutil.copytree(self.path / first, run)
        shutil.rmtree(run / "rank-0001")
        shutil.copytree(self.path / other / "rank-0001", run / "rank-0001")

    def test_another_number_of_ranks_is_refused(self):
        self.succeed("run", config(1), 2)
        self.fail_with("was trained by 2 rank.s., and this job has 3",
                       "run", config(1) | {"train_batch_size": 6}, 3, "--resume", ranks=3)
        self.fail_with("was trained by 2 rank.s., and this job has 1",
                       "run", config(1), 3, "--resume", ranks=1)
        self.fail_with("another zero_optimization.stage", "run", config(3), 3, "--resume")

    def test_a_new_run_goes_on_from_what_another_number_of_ranks_has_saved(self):
        self.succeed("whole", config(0, batch=24), 7, ranks=1)
        four = self.path / "four"
        self.succeed("four", config(1, batch=24, save_every=2), 4, ranks=4)
        kept = four / "checkpoints"
        self.assertEqual(sorted(os.listdir(kept)), ["step-2", "step-4"])
        self.assertEqual(self.weights(kept / "step-4"), self.weights(four))
        for ranks, stage, home, origin, steps in [
                (1, 0, "nvme", four, 3), (2, 3, "host", kept / "step-2", 5),
                (3, 1, "nvme", kept / "step-2", 5), (8, 2, "host", four, 3)]:
            with self.subTest(ranks=ranks):
                options = config(stage, batch=24, state_home=home)
                run = f"from-four-{ranks}"
                self.succeed(run, options, 7, "--from", origin, ranks=ranks)
                self.assertEqual(self.metrics(run)[-steps:], self.metrics("whole")[-steps:])

    def test_ranks_that_differ_are_named(self):
        first = self.arguments("run", config(1), 2)
        second = self.arguments("run", config(1, seed=7), 2)
        job = self.start([*MPIRUN, "1", *first, ":", MPIRUN[-1], "1", *second])
        output = job.communicate(timeout=120)[0]
        self.assertNotEqual(job.returncode, 0)
        self.assertIn("rank 1 has spillway.seed: 7, rank 0 has spillway.seed: 1234", output)

    def test_ranks_that_cannot_meet_are_refused(self):
        launched = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
                    "MASTER_PORT": "1"}
        done = subprocess.run(self.arguments("run", config(0), 1), capture_output=True,
                              encoding="utf-8", env=os.environ | launched, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("torchrun has started 2 ranks", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
