"""A resume goes on with the data, the mathematics and the state that the run has, or not at all.
usage: resume_test.py PROGRAM"""
import json
import os

from identity_test_case import IdentityTestCase
from program_test_case import ProgramTestCase, main


class Resume(IdentityTestCase):
    def setUp(self):
        super().setUp()
        self.configure({"gradient_clipping": 1.0})
        self.succeed(*self.train("run", 3))

    def expect_no_step(self, reason, *more):
        """The run is refused for that reason, and stays as it was."""
        with self.unchanged("run"):
            self.expect_refused(self.train("run", 6, *more), 2, reason)

    def test_of_other_training_tokens_is_refused(self):
        path = self.folder / "data/train.bin"
        original = path.read_bytes()
        for at in (0, len(original) // 4 * 2, len(original) - 2):
            with self.subTest(byte=at):
                tokens = bytearray(original)
                tokens[at] ^= 1
                path.write_bytes(tokens)
                self.expect_no_step("the training tokens differ", "--resume")
        path.write_bytes(original[:-2])
        self.expect_no_step("the training tokens differ", "--resume")
        path.write_bytes(original)
        self.succeed(*self.train("run", 6, "--resume"))

    def test_under_another_mathematics_is_refused_by_name(self):
        self.expect_no_step("seed: 3 in the run, 99 now", "--resume", "--seed", "99")
        self.configure({"gradient_clipping": 0.5})
        self.expect_no_step("gradient_clipping", "--resume")

    def test_is_asked_for_where_a_run_is_already(self):
        self.expect_no_step("--resume")

    def test_of_a_damaged_state_is_refused(self):
        swap, = (self.folder / "run/state").glob("*/tiles-0.swap")
        content = bytearray(swap.read_bytes())
        # One bit in every page: whatever slot is committed, its payload is hit.
        for at in range(100, len(content), 4096):
            content[at] ^= 1
        swap.write_bytes(content)
        done = self.run_program(*self.train("run", 6, "--resume", "--json"))
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(json.loads(done.stdout)["error"]["code"], "corrupt_data")
        os.truncate(swap, len(content) // 2)
        self.assertNotEqual(self.run_program(*self.train("run", 6, "--resume")).returncode, 0)


class Schedules(IdentityTestCase):
    def rates(self, run):
        return [line["lr"] for line in self.metrics(run)]

    def test_end_and_nobody_trains_behind_it_unasked(self):
        self.configure({"scheduler": {"type": "Linear"}})
        told = self.succeed(*self.train("run", 4)).stderr
        self.assertIn("total_num_steps: absent, the rate falls until step 4, the last one", told)
        self.assertEqual(self.rates("run")[-1], 0)
        with self.unchanged("run"):
            self.expect_refused(self.train("run", 8, "--resume"), 2,
                                "Start a new run --from this one")

        # The first remedy: a schedule that ends with a run of its own.
        self.succeed("train", "train.json", "--data", "data", "--from", "run", "--run", "new",
                     "--steps", 8)
        rates = self.rates("new")
        self.assertEqual(len(rates), 4)
        self.assertGreater(rates[2], 0)

        # The second one: an end that the file names, and a line that says what is behind it.
        self.configure({"scheduler": {"type": "Linear", "params": {"total_num_steps": 4}}})
        told = self.succeed(*self.train("run", 8, "--resume")).stderr
        self.assertIn("the run has 8 steps; those behind have the rate 0", told)


class Fsck(ProgramTestCase):
    def test_finds_damage_in_a_run_and_names_it(self):
        self.refused("fsck", "data")  # not a run
        self.succeed(*self.train("run", 3, "--nvme", self.drive("disk")))
        sound = self.document("fsck", "run")
        self.assertIs(sound["sound"], True)
        self.assertEqual(sound["stores"][0]["committed_step"], 3)
        self.assertGreater(sound["stores"][0]["bytes_checked"], 100_000)
        self.assertIn(sound["stores"][0]["engine"], ("uring", "aio", "posix"))
        self.assertIn("sound: committed step 3", self.succeed("fsck", "run").stdout)

        swap, = (self.folder / "disk").glob("*/tiles-0.swap")
        content = bytearray(swap.read_bytes())
        for at in range(1, 200_000, 4096):  # pages of both slots of the last tile
            content[-at] ^= 1
        swap.write_bytes(content)
        done = self.run_program("fsck", "run", "--json")
        damaged = json.loads(done.stdout)
        self.assertEqual((done.returncode, damaged["sound"]), (1, False))
        self.assertIs(damaged["stores"][0]["resumable"], False)
        self.assertTrue(damaged["stores"][0]["damage"])
        done = self.run_program("fsck", "run")
        self.assertEqual(done.returncode, 1)
        self.assertIn("DAMAGED tiles-0.swap: tile ", done.stdout)

        os.truncate(swap, 0)
        done = self.run_program("fsck", "run", "--json")
        self.assertEqual(done.returncode, 1)
        self.assertIsNone(json.loads(done.stdout)["stores"][0]["committed_step"])


if __name__ == "__main__":
    main()
