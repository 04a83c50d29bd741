"""What the ranks of one machine share out: cores of NUMA nodes, directories of --nvme, memory and
what is free on a drive; and how those of several meet. hwloc describes machines that are not here
(HWLOC_SYNTHETIC).
usage: ranks_place_test.py LAUNCHER... SPILLWAY"""
import json
import os
import shutil
import subprocess
import unittest.mock

from ranks_job import LAUNCHER, JobTest, config, main, start

TWO_NODES = "package:2 [numa(memory=8GB)] core:2 pu:1"


class Place(JobTest):
    def setUp(self):
        super().setUp()
        self.drives = [self.folder / "first", self.folder / "second"]
        for drive in self.drives:
            drive.mkdir()

    def plan(self, run, steps, *more, ranks=2, machine=None, **own):
        """Trains, and returns the plan of rank 0."""
        described = {"HWLOC_SYNTHETIC": machine} if machine else {}
        options = config(1, **({"threads": 0} | own))
        with unittest.mock.patch.dict(os.environ, described):
            output = self.trained(run, options, steps, "--json", *more, ranks=ranks)
        return plan_in(output)

    def in_drives(self):
        return [len(list(drive.iterdir())) for drive in self.drives]

    def named(self, *drives):
        return [text for drive in drives for text in ("--nvme", str(drive))]

    def test_ranks_have_a_node_and_a_drive_each_and_keep_the_drive(self):
        both = self.named(*self.drives)
        places = self.plan("run", 2, *both, machine=TWO_NODES)["places"]
        self.assertEqual([place["nodes"] for place in places], [[0], [1]])
        self.assertEqual([place["cores"] for place in places], [2, 2])
        self.assertEqual([place["threads"] for place in places], [2, 2])
        self.assertEqual([len(place["state"]) for place in places], [1, 1])
        self.assertEqual(self.in_drives(), [1, 1])
        for more in both, [], self.named(*reversed(self.drives)):
            with self.subTest(more=more):
                again = self.plan("run", 3, "--resume", *more, machine=TWO_NODES)["places"]
                self.assertEqual(self.in_drives(), [1, 1])
                self.assertEqual([len(place["state"]) for place in again], [1, 1])
        for drive in self.drives:
            shutil.move(drive, drive.with_suffix(".moved"))
        self.drives = [drive.with_suffix(".moved") for drive in self.drives]
        moved = self.plan("run", 4, "--resume", *self.named(*self.drives))["places"]
        self.assertEqual([".moved" in place["state"][0] for place in moved], [True, True])

    def test_ranks_of_one_drive_share_what_is_free(self):
        one = self.plan("one", 1, *self.named(self.drives[0]), ranks=1)
        two = self.plan("two", 1, *self.named(self.drives[0]))
        self.assertNotIn("places", one)
        self.assertEqual([place["state"] for place in two["places"]],
                         [[str(self.drives[0])]] * 2)
        for tier in "host", "nvme":
            self.assert_half(two["memory"][tier]["budget"], one["memory"][tier]["budget"])

    def test_what_is_asked_for_is_within_a_rank_s_part_of_the_machine(self):
        asked = {"host_memory": "1TiB", "device_memory": "1MiB"}
        one = self.plan("one", 1, ranks=1, **asked)["memory"]["host"]["budget"]
        two = self.plan("two", 1, **asked)["memory"]["host"]["budget"]
        self.assert_half(two, one)

    def test_launch_variables_that_contradict_each_other_end_the_other_ranks_too(self):
        cases = ((1, "RANK=5", "RANK=5 is no number below 2"),
                 (1, "PMI_RANK=0", "PMI_SIZE"),
                 (0, "SPILLWAY_TIMEOUT=0", "SPILLWAY_TIMEOUT is 0"),
                 (0, "PMI_RANK=0", "PMI_SIZE"))
        for rank, variable, told in cases:
            with self.subTest(rank=rank, variable=variable):
                right = self.arguments("run", config(1), 1)
                ranks = [right, right]
                ranks[rank] = ["env", variable, *right]
                job = start([*LAUNCHER, "1", *ranks[0], ":", LAUNCHER[-1], "1", *ranks[1]])
                output = job.communicate(timeout=60)[0]
                self.assertRegex(output, f"(?s){told}.*{told}")
                self.assertNotIn("had to be stopped", output)
                self.assertFalse((self.folder / "run").exists())

    def test_ranks_of_several_machines_meet_by_a_secret_in_the_run_directory(self):
        alone = ["env", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1"]  # on its machine, as far as it hears
        job = start([*LAUNCHER, "2", *alone, *self.arguments("run", config(1), 1)])
        output = job.communicate(timeout=60)[0]
        self.assertEqual(job.returncode, 0, output)
        self.assertFalse(self.path("run/job.secret").exists())

    def assert_half(self, part, whole):
        """Others use memory and drives meanwhile."""
        self.assertGreater(part, 0.3 * whole)
        self.assertLess(part, 0.7 * whole)

    def test_ranks_are_bound_to_cores_of_their_own(self):
        cores = len(os.sched_getaffinity(0))
        if cores < 2:
            self.skipTest("this machine has one core")
        places = self.plan("run", 1)["places"]
        self.assertEqual([place["bound"] for place in places], [True, True])
        self.assertLessEqual(sum(place["cores"] for place in places), cores)

    def test_a_launcher_s_choice_of_cores_is_kept(self):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            self.skipTest("this machine has one core")
        with unittest.mock.patch.object(subprocess, "Popen", bound(cores[:1])):
            places = self.plan("run", 1)["places"]
        self.assertEqual([place["cores"] for place in places], [0, 0])  # two ranks on one core
        self.assertEqual([place["bound"] for place in places], [False, False])
        self.assertEqual([place["threads"] for place in places], [1, 1])

    def test_ranks_with_different_cores_do_not_share_them_out(self):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            self.skipTest("this machine has one core")
        train = self.arguments("run", config(1, threads=0), 1, "--json")
        first, second = (["1", "taskset", "-c", core, *train] for core in cores[:2])
        job = start([*LAUNCHER, *first, ":", LAUNCHER[-1], *second])
        output = job.communicate(timeout=60)[0]
        self.assertEqual(job.returncode, 0, output)
        places = plan_in(output)["places"]
        self.assertEqual([place["cores"] for place in places], [1, 1])
        self.assertEqual([place["bound"] for place in places], [True, True])


def plan_in(output):
    return json.JSONDecoder().raw_decode(output, output.index("{"))[0]["plan"]


def bound(cores, popen=subprocess.Popen):
    """A Popen whose process may use `cores` alone."""
    return lambda *arguments, **named: popen(
        *arguments, preexec_fn=lambda: os.sched_setaffinity(0, cores), **named)


if __name__ == "__main__":
    main()
