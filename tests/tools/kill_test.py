"""kill -9 of a run that trains: whatever was committed goes on as if nothing had happened.
usage: kill_test.py PROGRAM
SPILLWAY_TEST_KILLS says how many at random instants, and SPILLWAY_TEST_SEED which instants."""
import os
import random
import time

from program_test_case import ProgramTestCase, main

KILLS = int(os.environ.get("SPILLWAY_TEST_KILLS", "12"))
SEED = int(os.environ.get("SPILLWAY_TEST_SEED", str(random.SystemRandom().randrange(2**32))))
# Half of the kills fall into the start, with its planning, recovery and first step, half after some
# of the steps that follow: fewer than a kill's share of all, so that there is a run left to kill,
# however the machine's speed changes.
STEPS_PER_KILL = 30


class Kill(ProgramTestCase):
    def setUp(self):
        super().setUp()
        self.configure({"gradient_clipping": 1.0}, eval_every=10)

    def kill(self, child):
        child.kill()
        self.assertEqual(child.wait(), -9, "it ended before it was killed")

    def expect_resumed(self, arguments):
        """The same losses at every step, and the same weights."""
        self.succeed(*arguments)
        self.assertEqual(self.results("killed"), self.results("whole"))
        self.assertEqual(self.weights("killed"), self.weights("whole"))

    def test_at_every_stage_of_the_run_changes_nothing(self):
        self.succeed(*self.train("whole", 40, "--nvme", self.drive("disk_a")))
        arguments = self.train("killed", 40, "--nvme", self.drive("disk_b"), "--resume")
        for steps in (3, 11, 19, 30):
            child = self.start(*arguments)
            self.wait_for_steps(child, "killed", steps)
            self.kill(child)
        self.expect_resumed(arguments)

    def test_at_random_instants_changes_nothing(self):
        print(f"{KILLS} kills, SPILLWAY_TEST_SEED={SEED}", flush=True)
        numbers = random.Random(SEED)
        steps = STEPS_PER_KILL * KILLS
        begin = time.monotonic()
        whole = self.start(*self.train("whole", steps, "--nvme", self.drive("disk_a")))
        self.wait_for_steps(whole, "whole", 1)
        start = time.monotonic() - begin
        self.assertEqual(whole.wait(), 0)
        step = (time.monotonic() - begin - start) / steps

        arguments = self.train("killed", steps, "--nvme", self.drive("disk_b"), "--resume")
        for kill in range(KILLS):
            before = self.steps_of("killed")
            child = self.start(*arguments)
            if kill % 2 == 0:
                self.wait_in_start("killed", before, numbers.uniform(0, start))
            else:
                self.wait_for_steps(child, "killed", before + numbers.randint(1, STEPS_PER_KILL))
                time.sleep(numbers.uniform(0, step))
            self.kill(child)
        self.expect_resumed(arguments)


if __name__ == "__main__":
    main()
