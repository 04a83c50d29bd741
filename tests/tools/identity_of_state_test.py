"""State that is lost, shared, moved or copied. usage: identity_of_state_test.py PROGRAM"""
import json
import os
import shutil
import signal

from identity_test_case import ENDLESS, STEPS, IdentityTestCase
from program_test_case import main


class LostState(IdentityTestCase):
    """State that is missing, blank or another's is never a fresh start."""

    def expect_named(self, damage, *words):
        self.trained("whole", 2 * STEPS, "--nvme", self.drive("whole-disk"))
        self.trained("run", STEPS, "--nvme", self.drive("disk"))
        swap = self.swap_file("run")
        shutil.copy(swap, self.path("kept.swap"))
        damage(swap)
        with self.unchanged("run", "disk"):
            for more in ([], ["--nvme", "disk"]):
                self.expect_refused(self.train("run", 2 * STEPS, "--resume", *more), 1,
                                    "tiles-0.swap", *words)
            self.expect_refused(self.train("run", 2 * STEPS), 2, "--resume")
        for command in (["info", "run"], ["eval", "--run", "run", "--data", "data"],
                        ["export", "run", "hf"], ["fsck", "run"]):
            self.refused(*command, code=1)
        shutil.move(self.path("kept.swap"), swap)
        self.trained("run", 2 * STEPS, "--resume")
        self.expect_resumed("run", "whole")

    def test_in_a_truncated_file_is_named(self):
        self.expect_named(lambda swap: os.truncate(swap, 0))

    def test_in_a_blank_file_is_named(self):
        def damage(swap):
            with open(swap, "r+b") as file:
                file.write(bytes(4096))
        self.expect_named(damage)

    def test_in_a_deleted_file_is_named(self):
        self.expect_named(os.unlink)

    def test_in_the_file_of_another_run_is_named(self):
        self.configure(seed=99)
        self.trained("other")
        self.configure()
        self.expect_named(lambda swap: shutil.copy(self.swap_file("other"), swap),
                          "belongs to run")

    def test_that_was_made_for_this_very_run_and_never_committed_is_named(self):
        child = self.start(*self.train("run", ENDLESS))
        while not self.path("run/manifest.json").exists():
            self.assertIsNone(child.poll())
        child.kill()
        child.wait()
        if self.manifest("run")["committed"] or self.run_program("info", "run").returncode == 0:
            return  # it was faster than the kill
        with self.unchanged("run"):
            self.expect_refused(["info", "run"], 2, "no committed step")

    def test_that_is_deleted_while_training_is_named(self):
        with self.live("run") as child:
            self.swap_file("run").unlink()
            self.assertNotIn("trained", self.expect_ended(child, 1, "tiles-0.swap"))

    def test_of_a_run_that_is_deleted_while_training_is_named(self):
        with self.live("run", "--nvme", self.drive("disk")) as child:
            shutil.rmtree(self.path("run"))
            said = self.expect_ended(child, 1, self.path("run").resolve())
            self.assertNotIn("trained  ", said)

    def test_of_a_run_that_is_replaced_while_training_is_named(self):
        """The directory is there again, as another's."""
        with self.live("run", "--nvme", self.drive("disk")) as child:
            os.rename(self.path("run"), self.path("aside"))
            shutil.copytree(self.path("aside"), self.path("run"))
            self.expect_ended(child, 1, "lock")


class Drives(IdentityTestCase):
    def test_that_are_not_mounted_are_named(self):
        self.trained("whole", 2 * STEPS)
        self.trained("run", STEPS, "--nvme", self.drive("disk"))
        shutil.move(self.path("disk"), self.path("drive"))
        self.drive("disk")  # the empty mount point
        for more in ([], ["--nvme", "disk"]):
            with self.unchanged("run", "disk", "drive"):
                done = self.run_program(*self.train("run", 2 * STEPS, "--resume", *more))
                self.assertIn(done.returncode, (1, 2))
                self.assertIn(str(self.path("disk").resolve()), done.stderr)
        # It is mounted elsewhere.
        self.trained("run", 2 * STEPS, "--resume", "--nvme", "drive")
        self.expect_resumed("run", "whole")
        self.assertIn(str(self.path("drive").resolve()), self.manifest("run")["state"][0])

    def test_that_are_not_the_runs_are_refused_on_a_resume(self):
        self.trained("run", STEPS, "--nvme", self.drive("disk"))
        self.drive("other")
        with self.unchanged("run", "disk", "other"):
            self.expect_refused(self.train("run", 2 * STEPS, "--resume", "--nvme", "other"), 2,
                                self.path("disk").resolve(), self.path("other").resolve())

    def test_with_a_typo_are_refused(self):
        with self.unchanged("."):
            self.expect_refused(self.train("run", STEPS, "--nvme", "dsik"), 2, "dsik")

    def test_are_shared_by_runs(self):
        disk = self.drive("disk")
        self.trained("whole-a")
        self.configure(seed=99)
        self.trained("whole-b")
        self.configure()
        with self.live("a", "--nvme", disk) as child:
            self.configure(seed=99)
            self.trained("b", STEPS, "--nvme", disk)
            child.send_signal(signal.SIGINT)
            self.expect_ended(child, 0)
        self.expect_equal_runs("b", "whole-b")
        of_a, of_b, of_whole = (self.succeed("eval", "--run", run, "--data", "data").stdout
                                for run in ("a", "b", "whole-b"))
        self.assertEqual(of_b, of_whole)
        self.assertNotEqual(of_a, of_b)
        self.assertEqual(*(self.results(run)[:STEPS - 1] for run in ("a", "whole-a")))
        self.assertEqual(len(list(disk.iterdir())), 2)


class OtherPlaces(IdentityTestCase):
    def test_are_those_of_a_moved_run(self):
        self.trained("whole", 2 * STEPS)
        for name, more in (("run", []), ("far", ["--nvme", self.drive("disk")])):
            self.trained(name, STEPS, *more)
            identity = self.manifest(name)["id"]
            moved = f"{name}-place/moved"
            self.drive(f"{name}-place")
            shutil.move(self.path(name), self.path(moved))
            self.trained(moved, 2 * STEPS, "--resume")
            self.expect_resumed(moved, "whole")
            self.assertEqual(self.manifest(moved)["id"], identity)

    def test_make_a_run_of_a_copy(self):
        self.configure(save_every=4)
        self.trained("whole", 2 * STEPS)
        self.trained("run")
        shutil.copytree(self.path("run"), self.path("copy"))
        with self.unchanged("run"):
            self.trained("copy", 2 * STEPS, "--resume")
        identity = self.manifest("copy")["id"]
        self.assertNotEqual(identity, self.manifest("run")["id"])
        self.assertEqual(json.loads(self.path("copy/config.json").read_text())["id"], identity)
        with self.unchanged("copy"):
            self.trained("run", 2 * STEPS, "--resume")
        for name in ("run", "copy"):
            self.expect_resumed(name, "whole")
        self.trained("copy", 2 * STEPS + 1, "--resume")

    def test_share_no_state(self):
        self.trained("whole", 2 * STEPS)
        self.trained("run", STEPS, "--nvme", self.drive("disk"))
        shutil.copytree(self.path("run"), self.path("copy"))
        copy, run = self.path("copy").resolve(), self.path("run").resolve()
        with self.unchanged("run", "copy", "disk"):
            self.expect_refused(self.train("copy", 2 * STEPS, "--resume"), 2, copy, run)
        shutil.move(self.path("run"), self.path("aside"))
        self.trained("copy", 2 * STEPS, "--resume")
        self.expect_resumed("copy", "whole")
        # The one that was left behind is the copy now.
        shutil.move(self.path("aside"), self.path("run"))
        with self.unchanged("run", "copy", "disk"):
            self.expect_refused(self.train("run", 2 * STEPS, "--resume"), 2, copy)


if __name__ == "__main__":
    main()
