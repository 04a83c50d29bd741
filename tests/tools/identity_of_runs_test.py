"""A run's directory, its kept checkpoints, its data and its log. usage: identity_of_runs_test.py
PROGRAM"""
import shutil
import signal
import time

from identity_test_case import STEPS, IdentityTestCase, snapshot
from program_test_case import MODEL, main


class OneProcess(IdentityTestCase):
    """One process a run, and only runs."""

    def test_a_second_start_of_a_live_run_is_refused(self):
        with self.live("run") as child:
            with self.unchanged("run/config.json", "run/manifest.json"):
                self.configure(seed=99)
                for more in ([], ["--resume"], ["--nvme", self.drive("disk")]):
                    self.expect_refused(self.train("run", STEPS, *more), 1, child.pid)
            self.assertEqual(list(self.path("disk").iterdir()), [])
            self.configure()
            child.send_signal(signal.SIGINT)
            self.expect_ended(child, 0)
        step = self.step("run")
        self.trained("run", step + 3, "--resume")
        self.trained("whole", step + 3)
        self.expect_resumed("run", "whole")

    def test_of_two_starts_at_once_one_trains(self):
        drives = [self.drive("disk-a"), self.drive("disk-b")]
        children = [self.start(*self.train("run", STEPS, "--nvme", drive)) for drive in drives]
        codes = sorted(child.wait() for child in children)
        self.assertEqual(codes[0], 0)
        self.assertIn(codes[1], (1, 2))
        self.trained("whole")
        self.expect_equal_runs("run", "whole")
        self.assertEqual(sum(len(list(drive.iterdir())) for drive in drives), 1)

    def test_a_live_run_has_readers(self):
        # A step of a quarter of a second: readers need not race with a run that commits in no time.
        self.configure(disk_gbps=0.005)
        with self.live("run") as child:
            for i in range(3):
                for command in (["info", "run"], ["fsck", "run"],
                                ["eval", "--run", "run", "--data", "data"],
                                ["generate", "--run", "run", "--tokens", "3", "--json"],
                                ["export", "run", f"hf-{i}"]):
                    self.succeed(*command, timeout=60)
            child.send_signal(signal.SIGINT)
            self.expect_ended(child, 0)
        step = self.step("run")
        self.configure()
        self.trained("whole", step)
        self.assertEqual(self.weights("run"), self.weights("whole"))

    def test_directories_that_hold_something_else_are_refused(self):
        self.trained("run", 2)
        self.succeed("export", "run", "hf")
        self.write("text/notes.txt", "mine")
        for name in ("hf", "data", "text"):
            with self.unchanged(name):
                self.expect_refused(self.train(name), 2, f"{name} is not a run")
            self.assertFalse(self.path(f"{name}/lock").exists())

    def test_a_run_that_has_lost_a_file_is_refused_by_its_name(self):
        self.trained("run", 2)
        for file in ("manifest.json", "config.json"):
            lost = self.path(f"run/{file}").rename(self.path(file))
            for command in (self.train("run", 3, "--resume"), ["info", "run"], ["fsck", "run"],
                            ["export", "run", "hf"],
                            ["train", "train.json", "--from", "run", "--data", "data",
                             "--run", "other"]):
                with self.unchanged("run"):
                    self.expect_refused(command, 2, file, "back")
            lost.rename(self.path(f"run/{file}"))
        self.trained("run", 3, "--resume")

    def test_a_resume_of_nothing_says_that_it_begins(self):
        done = self.succeed(*self.train("run", 2, "--resume"))
        self.assertIn("no committed step to go on from", done.stdout + done.stderr)

    def test_an_export_over_a_run_is_refused(self):
        self.trained("runs/run")
        with self.unchanged("runs"):
            for out in ("runs/run", "runs", "runs/run/state", "runs/run/../run"):
                self.expect_refused(["export", "runs/run", out, "--force"], 2, "run")
        self.succeed("export", "runs/run", "runs/run/export")
        self.trained("runs/run", STEPS + 2, "--resume")

    def test_an_interrupted_export_leaves_nothing(self):
        self.write("model.json", MODEL | {"n_embd": 256, "n_layer": 6})
        self.configure(device_memory="1GiB", host_memory="1GiB")
        self.trained("run", 1)
        for number in (signal.SIGTERM, signal.SIGINT):
            code = 0
            while code == 0:  # until one is not over before the signal comes
                shutil.rmtree(self.path("new"), ignore_errors=True)
                child = self.start("export", "run", "new/hf")
                while child.poll() is None and not self.path("new/.hf.partial").exists():
                    pass
                child.send_signal(number)
                code = child.wait()
                self.assertFalse(self.path("new/.hf.partial").exists())
            self.assertEqual(code, -number)
            self.assertFalse(self.path("new").exists())


class Starts(IdentityTestCase):
    def test_that_fail_leave_nothing(self):
        self.trained("source", 2)
        self.succeed("export", "source", "hf")
        weights = self.path("hf/model.safetensors")
        weights.write_bytes(weights.read_bytes()[:-1000])
        disk = self.drive("disk")
        with self.unchanged("."):
            for more in ([], ["--nvme", disk]):
                self.refused(*self.train("new/run", 2, "--device-memory", "64KiB", *more), code=3)
                done = self.run_program("train", "train.json", "--from", "hf", "--data", "data",
                                        "--run", "new/run", "--steps", 2, *more)
                self.assertNotEqual(done.returncode, 0)
            self.refused("train", "train.json", "--data", "data", "--run", "new")

    def test_that_are_killed_leave_nothing_to_the_next(self):
        """Whatever the instant: the next start is a whole run, and nothing of the first is left."""
        disk = self.drive("disk")
        self.trained("whole")
        begin = time.monotonic()
        self.trained("timed", 1)
        whole = time.monotonic() - begin
        for i in range(4):
            arguments = self.train(f"run-{i}", STEPS, "--nvme", disk, "--resume")
            child = self.start(*arguments)
            time.sleep(whole * (i + 1) / 5)
            child.kill()
            child.wait()
            self.succeed(*arguments)
            self.expect_equal_runs(f"run-{i}", "whole")
            self.assertEqual(len(list(disk.iterdir())), i + 1)


    def test_find_nothing_half_written_after_a_kill(self):
        """A process may be killed before it has renamed what it writes."""
        self.trained("run", 2)
        run, state = self.path("run"), self.swap_file("run").parent
        left = [run / ".manifest.json.4000000.0.tmp", run / ".metrics.jsonl.4000000.1.tmp",
                state / ".run.4000000.0.tmp", state / "calibration-0.swap"]
        for path in left:
            path.write_bytes(b"half")
        own = self.write("run/.notes.tmp", "mine")
        self.trained("run", STEPS, "--resume")
        self.assertEqual([path for path in (*left, own) if path.exists()], [own])
        self.trained("whole")
        self.expect_resumed("run", "whole")


class KeptCheckpoints(IdentityTestCase):
    def test_of_an_abandoned_run_are_made_again(self):
        rare = {"commit_every": 1000, "save_every": 5, "eval_every": 5}
        self.configure(**rare)
        self.trained("whole", 30, "--nvme", self.drive("whole-disk"))
        with self.live("run", "--nvme", self.drive("disk"), steps=14):
            pass  # killed
        self.configure(**rare, seed=99)
        with self.unchanged("run", "disk"):
            self.expect_refused(self.train("run", 30, "--nvme", "disk"), 2, "committed step")
        self.configure(**rare)
        self.trained("run", 30, "--nvme", "disk", "--resume")
        self.expect_equal_runs("run", "whole")
        for step in (25, 30):
            if self.path(f"whole/checkpoints/step-{step}").exists():
                self.assertEqual(*(self.weights(f"{run}/checkpoints/step-{step}")
                                   for run in ("run", "whole")))

    def test_of_another_run_are_refused(self):
        self.configure(save_every=4, seed=99)
        self.trained("other")
        self.configure(save_every=4)
        self.trained("run", 2)
        shutil.copytree(self.path("other/checkpoints"), self.path("run/checkpoints"))
        with self.unchanged("run"):
            self.expect_refused(self.train("run", STEPS, "--resume"), 2, "step-", "move it")
        shutil.rmtree(self.path("run/checkpoints"))
        self.trained("run", STEPS, "--resume")

    def test_are_not_trained_on(self):
        self.configure(save_every=4)
        self.trained("run")
        name = sorted(self.path("run/checkpoints").iterdir())[0]
        with self.unchanged("run"):
            self.expect_refused(self.train(name, STEPS, "--resume"), 2, "--from")


class Data(IdentityTestCase):
    def test_for_validation_is_checked_at_the_start(self):
        before = snapshot(self.folder)
        for values, code, word in (([1] * 16, 2, "val.bin"),
                                   ([1] * 300 + [256] + [1] * 99, 1, "256")):
            self.tokens("data/val.bin", values)
            self.expect_refused(self.train("run"), code, word)
            self.assertFalse(self.path("run").exists())
        self.assertEqual(snapshot(self.folder).keys(), before.keys())

    def test_that_is_damaged_while_training_commits_the_sound_state(self):
        self.configure(commit_every=1000)
        size = self.path("data/train.bin").stat().st_size
        with self.live("run", steps=5) as child:
            self.tokens("data/train.bin", [300] * (size // 2))
            self.expect_ended(child, 1, "train.bin")
        steps = len(self.results("run"))
        self.assertGreaterEqual(steps, 5)
        self.assertEqual(self.step("run"), steps)

    def test_of_metrics_with_a_torn_line_is_told_and_goes_on(self):
        self.trained("run")
        self.trained("whole", STEPS + 4)
        metrics = self.path("run/metrics.jsonl")
        lines = metrics.read_bytes().splitlines(keepends=True)
        lines[4] = lines[4][:20] + b"\n"
        metrics.write_bytes(b"".join(lines) + b'{"step":')
        self.trained("run", STEPS + 4, "--resume")
        self.assertIn("could not be read", self.told)
        self.assertEqual([line["step"] for line in self.results("run")],
                         [step for step in range(1, STEPS + 5) if step != 5])


if __name__ == "__main__":
    main()
