"""The run of three ranks from outside: what reads runs reads it as it reads the run of one.
usage: ranks_run_test.py LAUNCHER... SPILLWAY"""
import json
import os
import shutil

from ranks_job import JobTest, config, main

RANKS = 3
SHARDED = config(3, batch=6)


class RunOfRanks(JobTest):
    def setUp(self):
        super().setUp()
        self.trained("three", SHARDED, 2, ranks=RANKS)

    def test_is_exported_to_the_bytes_of_a_run_of_one_rank(self):
        self.trained("one", config(0, batch=6), 2, ranks=1)
        for run in ("one", "three"):
            self.succeed("export", run, f"{run}_out")
        for file in ("model.safetensors", "config.json"):
            one, three = (self.path(f"{run}_out/{file}") for run in ("one", "three"))
            self.assertEqual(one.read_bytes(), three.read_bytes(), file)

    def test_is_described_and_checked_with_all_its_ranks(self):
        info = self.document("info", "three")
        self.assertEqual((info["ranks"], info["step"]), (RANKS, 2))
        self.assertEqual(len(self.document("fsck", "three")["ranks"]), RANKS - 1)
        swap, = self.path("three/rank-0002").rglob("tiles-0.swap")
        os.truncate(swap, swap.stat().st_size - 4096)
        self.assertNotEqual(self.run_program("fsck", "three", "--json").returncode, 0)

    def test_is_read_at_the_step_that_all_ranks_have(self):
        """What a kill leaves between the commits of two ranks."""
        weights = self.weights("three")
        told = "which another rank has not: step 2 is read"
        self.assertNotIn(told, self.told)
        shutil.copytree(self.path("three/rank-0001"), self.path("behind"))
        self.trained("three", SHARDED, 3, "--resume", ranks=RANKS)
        shutil.rmtree(self.path("three/rank-0001"))
        self.path("behind").rename(self.path("three/rank-0001"))
        self.assertEqual(self.weights("three"), weights)
        self.assertIn(told, self.told)
        self.assertEqual(self.document("info", "three")["step"], 2)
        sound = self.document("fsck", "three")
        self.assertEqual([store["committed_step"] for store in sound["stores"]], [3, 2])
        self.assertEqual([len(rank["stores"]) for rank in sound["ranks"]], [1, 2])

    def test_does_not_begin_beside_a_rank_of_another(self):
        self.path("new").mkdir()
        foreign = self.path("new/rank-0007")
        shutil.copytree(self.path("three/rank-0002"), foreign)
        files = {path: path.read_bytes() for path in foreign.rglob("*") if path.is_file()}
        for ranks in 1, RANKS:
            with self.subTest(ranks=ranks):
                self.fail_with(f"{foreign} is of an earlier run .* choose another --run, or move",
                               "new", SHARDED, 2, ranks=ranks)
                self.assertEqual(files, {path: path.read_bytes() for path in foreign.rglob("*")
                                         if path.is_file()})
                self.assertEqual(list(self.path("new").iterdir()), [foreign])
        foreign.rename(self.path("apart"))
        self.trained("new", SHARDED, 2, ranks=RANKS)

    def test_is_refused_by_rank_and_folder_if_one_is_missing(self):
        shutil.rmtree(self.path("three/rank-0001"))
        done = self.run_program("export", self.path("three"), "out")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(f"{self.path('three')}/rank-0001 is not there", done.stderr)
        self.assertIn("rank 1 of 3", done.stderr)
        self.assertFalse(self.path("out").exists())


class OpenRounds(JobTest):
    def recorded(self, folder) -> int:
        return json.loads(self.path(f"{folder}/config.json").read_text())["train"]["spillway"][
            "rounds"]

    def test_are_chosen_once_for_all_ranks_and_kept(self):
        tight = config(0, batch=128, sum_order="fast", rounds="auto", activations="device",
                       device_memory="520KiB")
        whole = self.trained("whole", tight, 6)
        self.assertEqual(whole.count('spillway.rounds "auto": rounds'), 1)
        rounds = self.recorded("whole")
        self.assertGreater(rounds, 1)
        self.assertEqual(self.recorded("whole/rank-0001"), rounds)
        self.trained("parts", tight, 3)
        tight["spillway"]["device_memory"] = "16MiB"
        self.trained("parts", tight, 6, "--resume")
        self.assertEqual(self.recorded("parts"), rounds)
        self.assertEqual(self.weights("parts"), self.weights("whole"))
        tight["spillway"]["rounds"] = rounds
        self.trained("given", tight, 6)
        self.assertEqual(self.weights("given"), self.weights("whole"))


if __name__ == "__main__":
    main()
