"""A rank that dies, hangs or disagrees ends the job on every rank, with an error that names it.
usage: ranks_failures_test.py LAUNCHER... PROGRAM"""
import subprocess
import sys
import time
import unittest

COMMAND = sys.argv[1:]
RANKS = 3
SECONDS = 20  # the ranks' limit is 0.7; starting and ending a job takes about one


class FailingRanks(unittest.TestCase):
    def run_ranks(self, how):
        *launcher, program = COMMAND
        start = time.monotonic()
        done = subprocess.run([*launcher, str(RANKS), program, how], capture_output=True, text=True,
                              timeout=120, stdin=subprocess.DEVNULL)
        self.assertLess(time.monotonic() - start, SECONDS)
        return done

    def check(self, how, *texts):
        done = self.run_ranks(how)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertNotIn("no rank has failed", done.stdout)
        self.assertNotRegex(done.stderr, r"ranks \[[01].* had to be stopped")
        said = f"{done.stderr}{done.stdout}the launcher's status: {done.returncode}"
        for text in texts:
            self.assertRegex(said, text)

    def test_ranks_that_do_nothing_wrong_succeed(self):
        done = self.run_ranks("none")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("no rank has failed"), RANKS)

    def test_a_rank_that_works_for_longer_than_the_limit(self):
        done = self.run_ranks("works")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("no rank has failed"), RANKS)

    def test_an_exception(self):
        self.check("throws", "ERROR: the disk of this rank is full",
                   "ERROR: rank 2 has abandoned the group: ")

    def test_a_rank_that_hangs(self):
        self.check("hangs", "ERROR: .*waited 0.7 s for rank 2 in all_reduce .collective 13.")

    def test_a_rank_that_ends(self):  # mpirun says so, MPICH's by its status; over TCP others do
        self.check("exits", r"(?i)rank:? 2|\[2\]|exit|status: 7")

    def test_a_rank_that_dies(self):
        self.check("dies", r"(?i)rank:? 2|signal 9|killed")

    def test_another_size(self):
        self.check("sizes", "rank 2 of 3 called all_reduce of 8 bytes",
                   "of 3 called all_reduce of 4096 bytes")

    def test_another_operation(self):
        self.check("operations", "rank 2 of 3 called barrier")

    def test_another_version(self):
        self.check("version", "the version of rank 2 is 0.1, of rank 0 0.2")

    def test_another_configuration(self):
        self.check("configuration", "rank 2 has seed: 5, rank 0 has seed: 6")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
