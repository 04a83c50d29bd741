"""Training where memory or the disk is small: in a real cgroup, on a real small filesystem.
usage: small_machine_test.py PROGRAM"""
import json
import unittest

from memory_cgroup import MemoryCgroup, NotPossible
from program_test_case import CONFIG, MODEL, ProgramTestCase

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
        self.write("model.json", json.dumps(LARGER))
        self.write("train.json", json.dumps({**CONFIG, "train_micro_batch_size_per_gpu": 1}))

    def run_inside(self, *arguments):
        return self.run_program(*arguments, preexec_fn=self.group.join)

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
        done = self.run_inside(*self.train("run", 3), "--device-memory", "249MiB",
                               "--host-memory", "258MiB")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_what_cannot_fit_is_refused_with_the_cgroup_named(self):
        self.write("model.json", json.dumps({**LARGER, "n_embd": 4096, "n_layer": 1}))
        done = self.run_inside(*self.train("run", 3))
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn(str(self.group.folder), done.stderr)


if __name__ == "__main__":
    unittest.main()
