"""Training where memory or the disk is small: in a real cgroup, on a real small filesystem.
usage: small_machine_test.py PROGRAM"""
import json
import shlex
import subprocess

from memory_cgroup import MemoryCgroup, NotPossible
from program_test_case import CONFIG, MODEL, PROGRAM, SECONDS, ProgramTestCase, main

MIB = 1 << 20
LIMIT = 400 * MIB
# 25 M parameters: in fp32, with their gradients, more than the limit.
LARGER = {**MODEL, "n_embd": 512, "n_layer": 8}


class InAMemoryCgroup(ProgramTestCase):
    def setUp(self):
        super().setUp()
        try:
            self.group = MemoryCgroup(LIMIT)
        except NotPossible as reason:
            self.skipTest(f"no memory cgroup can be made here: {reason}")
        self.addCleanup(self.group.remove)

    def run_inside(self, *arguments):
        return self.run_program(*arguments, preexec_fn=self.group.join)


class Measuring(InAMemoryCgroup):
    def test_takes_no_more_than_the_run_was_given(self):
        done = self.run_inside(*self.train("run", 3), "--device-memory", "4MiB",
                               "--host-memory", "4MiB")
        self.assertEqual(done.returncode, 0, done.stderr)
        # Both budgets, and what the program takes itself and the cache keeps of a few small files.
        try:
            self.assertLess(self.group.peak(), 40 * MIB)
        except NotPossible as reason:  # before Linux 5.19
            self.skipTest(str(reason))


class InASmallCgroup(InAMemoryCgroup):
    def setUp(self):
        super().setUp()
        self.write("model.json", LARGER)
        self.write("train.json", {**CONFIG, "train_micro_batch_size_per_gpu": 1})

    def test_a_run_takes_what_the_cgroup_leaves_and_ends_well(self):
        done = self.run_inside(*self.train("run", 3), "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        memory = json.loads(done.stdout)["plan"]["memory"]
        self.assertLess(memory["device"]["budget"] + memory["host"]["budget"], LIMIT - 64 * MIB)
        self.assertEqual([line["step"] for line in self.metrics("run")], [1, 2, 3])
        for command in (["eval", "--run", "run", "--data", "data"], ["export", "run", "hf"],
                        ["eval", "--model", "hf", "--data", "data"]):
            done = self.run_inside(*command)
            self.assertEqual(done.returncode, 0, done.stderr)
        done = self.run_inside("eval", "--run", "run", "--data", "data", "--batch", "16384",
                               "--device-memory", "8GiB", "--host-memory", "8GiB")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn(str(self.group.folder), done.stderr)

    def test_sizes_beyond_the_cgroup_are_lowered_and_not_killed(self):
        done = self.run_inside(*self.train("run", 3), "--device-memory", "2GiB",
                               "--host-memory", "2GiB")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_what_cannot_fit_is_refused_with_the_cgroup_named(self):
        self.write("model.json", {**LARGER, "n_embd": 4096, "n_layer": 1})
        done = self.run_inside(*self.train("run", 3))
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn(str(self.group.folder), done.stderr)


class OnASmallDrive(ProgramTestCase):
    """A filesystem of 8 MiB, in a namespace of its own."""

    def run_there(self, *commands):
        script = "mount -t tmpfs -o size=8m none drive || exit 77\n" + "\n".join(commands)
        (self.folder / "drive").mkdir(exist_ok=True)
        for user in (["--map-root-user"], []):
            done = subprocess.run(["unshare", *user, "--mount", "sh", "-ec", script], check=False,
                                  cwd=self.folder, capture_output=True, text=True, timeout=SECONDS)
            if "DONE" in done.stdout or done.returncode not in (1, 77):
                return done
        self.skipTest(f"no filesystem can be mounted here: {done.stderr}")

    def command(self, *arguments):
        return shlex.join([PROGRAM, *arguments])

    def test_the_drive_is_measured_within_what_it_has_free(self):
        done = self.run_there("echo DONE", self.command(*self.train("run", 3, "--nvme", "drive")))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.metrics("run")), 3)

    def test_a_full_drive_is_named(self):
        train = self.train("run", 4, "--nvme", "drive", "--resume")
        done = self.run_there("echo DONE", self.command(*self.train("run", 2, "--nvme", "drive")),
                              "head -c 8388608 /dev/zero > drive/ballast || true",
                              self.command(*train))
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertRegex(done.stderr, "to measure the disk takes at least .*drive.* has .* free")


if __name__ == "__main__":
    main()
