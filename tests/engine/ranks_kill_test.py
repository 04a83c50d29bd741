"""kill -9 of a rank at random instants: the job ends soon and names the rank, and whoever resumes
it goes on as if nothing had happened, with the same losses and the same weights.
usage: ranks_kill_test.py LAUNCHER... SPILLWAY
SPILLWAY_TEST_KILLS says how many (4), and SPILLWAY_TEST_SEED which instants."""
import os
import pathlib
import random
import shutil
import signal
import time

from ranks_job import JobTest, config, main

KILLS = int(os.environ.get("SPILLWAY_TEST_KILLS", "4"))
SEED = int(os.environ.get("SPILLWAY_TEST_SEED", str(random.SystemRandom().randrange(2**32))))
SECONDS = 30  # within which a job ends whose rank has died
# After so many steps at most a job that has begun to train is killed: there is always a run left.
STEPS_PER_KILL = 12
STEPS_LEFT = 60  # at least: this process may come late on busy cores
TRIES = 10  # where it comes later still, and the job has ended by itself
WAYS = [(2, config(1, save_every=7)),
        (3, config(3, batch=6, save_every=5, state_home="host", commit_every=3)),
        (8, config(3, batch=4, save_every=7) | {"pipeline": {"stages": 2},
                                                "tensor_parallel": {"autotp_size": 2}})]


def processes_below(process):
    children = pathlib.Path(f"/proc/{process}/task/{process}/children")
    try:
        for child in children.read_text().split():
            yield child
            yield from processes_below(child)
    except OSError:  # it has ended
        return


def process_of(launcher, rank):
    """The process of that rank once the launcher has started it."""
    for process in processes_below(launcher):
        try:
            environment = pathlib.Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(f"{name}RANK={rank}".encode() in environment
               for name in ("OMPI_COMM_WORLD_", "PMI_", "PMIX_", "")):
            return int(process)
    return None


class EndedByItselfError(Exception):
    """The job had ended before it could be killed."""


class Kills(JobTest):
    def test_change_nothing_at_any_instant(self):
        print(f"{KILLS} kills, SPILLWAY_TEST_SEED={SEED}", flush=True)
        numbers = random.Random(SEED)
        slowest = {True: 0.0, False: 0.0}  # by whether the ranks have met
        for way, (ranks, options) in enumerate(WAYS):
            kills = len(range(way, KILLS, len(WAYS)))
            steps = STEPS_PER_KILL * kills + STEPS_LEFT
            begin = time.monotonic()
            whole = self.launch(f"whole{way}", options, steps, ranks=ranks)
            self.wait_for_lines(whole, f"whole{way}", 1)
            begun = time.monotonic() - begin
            output = whole.communicate(timeout=600)[0]
            self.assertEqual(whole.returncode, 0, output)
            a_step = (time.monotonic() - begin - begun) / steps
            for kill in range(kills):
                # Half of them fall into the start, half into what follows it.
                after = None if kill % 2 else numbers.randrange(STEPS_PER_KILL)
                delay = numbers.uniform(0, begun if after is None else a_step)
                victim = numbers.randrange(ranks)
                took = self.kill_in_time(f"killed{way}", options, steps, ranks, victim, after,
                                         delay)
                has_met = after is not None
                slowest[has_met] = max(slowest[has_met], took)
                self.check_so_far(way)
            self.trained(f"killed{way}", options, steps, "--resume", ranks=ranks)
            self.check_equal(way)
            if ranks == 8:
                self.go_on_on_another_grid(way, options, steps)
        print(f"the slowest job ended {slowest[True]:.1f} s after the kill, and "
              f"{slowest[False]:.1f} s where it fell into the start", flush=True)

    def go_on_on_another_grid(self, way, options, steps):
        """Two ranks go on from what eight have saved, with the bits of the eight."""
        alone = options | {"pipeline": {"stages": 1}, "zero_optimization": {"stage": 0}}
        self.trained("apart", alone, steps + 2, "--from", self.folder / f"killed{way}", ranks=2)
        self.trained(f"whole{way}", options, steps + 2, "--resume", ranks=8)
        self.assertEqual(self.results("apart")[-2:], self.results(f"whole{way}")[-2:])
        self.assertEqual(self.weights("apart"), self.weights(f"whole{way}"))

    def wait_for_lines(self, job, run, lines):
        while self.steps_of(run) < lines:
            self.expect_running(job)
            time.sleep(0.001)

    def expect_running(self, job):
        if job.poll() is not None:
            output = job.communicate()[0]
            self.assertEqual(job.returncode, 0, output)
            raise EndedByItselfError(output)

    def kill_in_time(self, run, *arguments):
        """Kills a job, and begins again from the run as it was where the job was faster."""
        kept = self.folder / "as-it-was"
        if self.path(run).exists():
            shutil.copytree(self.path(run), kept)
        for _ in range(TRIES):
            try:
                took = self.kill(run, *arguments)
                shutil.rmtree(kept, ignore_errors=True)
                return took
            except EndedByItselfError:
                shutil.rmtree(self.path(run))
                if kept.exists():
                    shutil.copytree(kept, self.path(run))
        return self.fail(f"the job ended by itself before it could be killed, {TRIES} times")

    def kill(self, run, options, steps, ranks, victim, after, delay):
        """Kills `victim` when the job has done `after` steps, or after its start, and `delay`."""
        before = self.steps_of(run)
        job = self.launch(run, options, steps, "--resume", ranks=ranks)
        while (process := process_of(job.pid, victim)) is None:
            self.expect_running(job)
        if after is None:
            self.wait_in_start(run, before, delay)
        else:
            self.wait_for_lines(job, run, before + after + 1)
            time.sleep(delay)
        self.expect_running(job)
        os.kill(process, signal.SIGKILL)
        begin = time.monotonic()
        output = job.communicate(timeout=300)[0]
        took = time.monotonic() - begin
        what = f"rank {victim} of {ranks}, {delay:.3f} s after step {after}: {output}"
        self.assertLess(took, SECONDS, what)
        self.assertNotEqual(job.returncode, 0, what)
        # mpiexec of MPICH ends the others before they know, and names the process.
        self.assertRegex(output, rf"(?i)rank:? {victim}\b|PID {process} RUNNING AT", what)
        if after is not None:  # ranks that have met need nobody to end them
            self.assertNotIn("had to be stopped", output, what)
        return took

    def check_so_far(self, way):
        """The last line may lack its evaluation."""
        done = self.results(f"killed{way}")[:-1]
        self.assertEqual(done, self.results(f"whole{way}")[:len(done)])

    def check_equal(self, way):
        self.assertEqual(self.results(f"killed{way}"), self.results(f"whole{way}"))
        kept = [sorted(os.listdir(self.folder / f"{run}{way}" / "checkpoints"))
                for run in ("killed", "whole")]
        self.assertEqual(*kept)
        for part in ["", *(f"/checkpoints/{step}" for step in kept[0])]:
            self.assertEqual(self.weights(f"killed{way}{part}"), self.weights(f"whole{way}{part}"))


if __name__ == "__main__":
    main()
