"""Runs of several ranks whose folders are mixed: whoever reads or resumes them refuses by name.
usage: ranks_identity_test.py LAUNCHER... SPILLWAY"""
import shutil
import time

from ranks_job import LAUNCHER, JobTest, config, main, start

SHARDED = config(3, eval_every=1)
SPLIT = config(0, batch=4, eval_every=1) | {"pipeline": {"stages": 2}}
TENSOR = config(0, batch=4, eval_every=1) | {"tensor_parallel": {"autotp_size": 2}}
EXPORT = {"export": ["mine", "out"]}
FOREIGN = "mine/rank-0001 is (of another run than|not of rank 1 of the run in) .*mine"


class Identity(JobTest):
    def put(self, origin):
        """Makes rank 1 of `mine` that of another run."""
        shutil.rmtree(self.folder / "mine/rank-0001")
        shutil.copytree(self.folder / origin, self.folder / "mine/rank-0001")

    def refused(self, options, readers):
        for command, arguments in readers.items():
            with self.subTest(command=command):
                done = self.run_program(command, *arguments)
                self.assertNotEqual(done.returncode, 0)
                self.assertRegex(done.stderr, FOREIGN)
        with self.subTest(command="--resume"):
            self.fail_with(FOREIGN, "mine", options, 3, "--resume")
        self.assertFalse((self.folder / "out").exists())

    def check_grid(self, options, readers=EXPORT):
        def seeded(seed):
            return options | {"spillway": options["spillway"] | {"seed": seed}}

        self.trained("mine", seeded(1), 2)
        self.trained("other", seeded(2), 2)
        shutil.copytree(self.folder / "mine/rank-0001", self.folder / "own")
        self.put("other/rank-0001")
        self.refused(seeded(1), readers)
        self.put("own")
        self.trained("mine", seeded(1), 3, "--resume")

    def test_the_rank_of_another_run_is_refused_with_sharded_parameters(self):
        self.check_grid(SHARDED, EXPORT | {
            "info": ["mine"], "fsck": ["mine"], "eval": ["--run", "mine", "--data", "data"],
            "generate": ["--run", "mine", "--prompt", "a", "--tokens", "1"]})
        self.trained("whole", SHARDED | {"spillway": SHARDED["spillway"] | {"seed": 1}}, 3)
        self.assertEqual(self.results("mine"), self.results("whole"))
        self.put("other/rank-0001")
        self.fail_with(FOREIGN, "next", SHARDED, 3, "--from", self.folder / "mine")
        self.assertFalse((self.folder / "next").exists())

    def test_the_rank_of_another_run_is_refused_in_a_pipeline(self):
        self.check_grid(SPLIT)

    def test_the_rank_of_another_run_is_refused_in_a_tensor_group(self):
        self.check_grid(TENSOR)

    def test_a_copy_and_its_original_do_not_mix(self):
        self.trained("first", SHARDED, 2)
        shutil.copytree(self.folder / "first", self.folder / "mine")
        self.trained("mine", SHARDED, 3, "--resume")
        self.trained("first", SHARDED, 3, "--resume")
        shutil.copytree(self.folder / "mine/rank-0001", self.folder / "own")
        self.put("first/rank-0001")
        self.refused(SHARDED, EXPORT)
        self.put("own")
        self.trained("mine", SHARDED, 4, "--resume")
        self.trained("first", SHARDED, 4, "--resume")
        self.assertEqual(self.results("mine"), self.results("first"))

    def test_a_copy_that_has_a_folder_of_the_original_by_a_link_is_refused(self):
        options = config(3, eval_every=0, save_every=1)
        for folder in ("rank-0001", "state", "rank-0001/state", "checkpoints"):
            with self.subTest(folder=folder):
                shutil.rmtree(self.folder / "mine", ignore_errors=True)
                self.trained("mine", options, 2)
                linked = self.folder / folder.replace("/", "-")
                shutil.move(self.folder / "mine" / folder, linked)
                (self.folder / "mine" / folder).symlink_to(linked)
                copy = self.folder / f"copy-{linked.name}"
                shutil.copytree(self.folder / "mine", copy, symlinks=True)
                self.fail_with("is a copy (of|that shares)", copy.name, options, 3, "--resume")
                self.trained("mine", options, 3, "--resume")

    def test_a_resume_that_is_refused_changes_no_rank(self):
        options = config(3, batch=9, eval_every=0)
        ranks = {name: self.folder / "mine" / name for name in ("rank-0001", "rank-0002")}
        for step in (2, 3, 4):
            self.trained("mine", options, step, *["--resume"] * (step > 2), ranks=3)
            for name, path in ranks.items():
                shutil.copytree(path, self.folder / f"{name}-{step}")

        def at(name, step):
            shutil.rmtree(ranks[name])
            shutil.copytree(self.folder / f"{name}-{step}", ranks[name])

        at("rank-0001", 3)  # as a kill may leave it
        at("rank-0002", 2)  # an old backup
        self.fail_with("rank 2 has committed step 2, and rank 0 step 4.*rank-0002 is older",
                       "mine", options, 5, "--resume", ranks=3)
        at("rank-0002", 4)
        self.trained("mine", options, 5, "--resume", ranks=3)

    def test_a_resume_that_finds_damage_takes_no_rank_back(self):
        options = config(3, eval_every=0)
        rank = self.folder / "mine/rank-0001"
        for step in 2, 3:
            self.trained("mine", options, step, *["--resume"] * (step > 2))
            shutil.copytree(rank, self.folder / f"rank-{step}")
        shutil.rmtree(rank)
        shutil.copytree(self.folder / "rank-2", rank)  # as a kill may leave it
        swap, = rank.rglob("tiles-0.swap")
        with swap.open("r+b") as file:
            file.seek(swap.stat().st_size // 2)
            file.write(bytes(swap.stat().st_size // 2))
        first, = (self.folder / "mine/state").rglob("tiles-0.swap")
        before = first.read_bytes()
        self.fail_with("rank 1 of 2: .*tile", "mine", options, 4, "--resume")
        self.assertEqual(first.read_bytes(), before)
        shutil.rmtree(rank)
        shutil.copytree(self.folder / "rank-3", rank)
        self.assertIn("resumed after step 3", self.trained("mine", options, 4, "--resume"))

    def test_another_rank_of_the_same_run_is_refused(self):
        self.trained("mine", config(3, batch=24), 2, ranks=3)
        self.put("mine/rank-0002")
        done = self.run_program("export", "mine", "out")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, "not of rank 1 of the run in .*mine: it is of rank 2")

    def test_kept_checkpoints_do_not_mix(self):
        options = config(3, save_every=2, keep=1)
        self.trained("mine", options, 2)
        self.trained("other", options | {"spillway": options["spillway"] | {"seed": 2}}, 2)
        part = "checkpoints/step-2/rank-0001"
        shutil.rmtree(self.folder / "mine" / part)
        shutil.copytree(self.folder / "other" / part, self.folder / "mine" / part)
        done = self.run_program("export", "mine/checkpoints/step-2", "out")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, "step-2/rank-0001 is not of rank 1 of the run in .*step-2")

    def test_a_start_that_was_cut_off_in_its_first_commit_begins_anew(self):
        self.path("data/val.bin").unlink()
        options = config(1, state_home="host", commit_every=1000, eval_every=0)
        run = self.folder / "mine"
        job = self.launch("mine", options, 200, ranks=2)
        while self.steps_of("mine") < 1 and job.poll() is None:
            time.sleep(0.002)
        shutil.copytree(run, self.folder / "begun")
        output = job.communicate(timeout=300)[0]
        self.assertEqual(job.returncode, 0, output)
        shutil.copytree(run, self.folder / "ended")
        self.fail_with("holds a run with a committed step; continue it with --resume", "mine",
                       options, 2)
        for first, second in (("begun", "ended"), ("ended", "begun")):
            with self.subTest(first=first):
                shutil.rmtree(run)
                shutil.copytree(self.folder / first, run)
                self.put(f"{second}/rank-0001")
                self.trained("mine", options, 2)
                self.assertEqual([line["step"] for line in self.results("mine")], [1, 2])

    def start_apart(self, first, second):
        """Starts a job of two ranks with other arguments each, and returns what they say."""
        job = start([*LAUNCHER, "1", *first, ":", LAUNCHER[-1], "1", *second])
        output = job.communicate(timeout=120)[0]
        self.assertNotEqual(job.returncode, 0, output)
        return output

    def test_ranks_with_other_sources_are_refused(self):
        for name, seed in (("a", 1), ("b", 2)):
            self.trained(name, config(1, seed=seed), 2)
            self.succeed("export", name, f"weights-{name}")

        def arguments(run, origin):
            return self.arguments(run, config(1), 2, "--from", self.folder / origin)

        self.assertRegex(self.start_apart(arguments("run", "a"), arguments("run", "b")),
                         r"rank 1 has start weights: run \w{32}, rank 0 has start weights: run \w")
        self.assertRegex(
            self.start_apart(arguments("run", "weights-a"), arguments("run", "weights-b")),
            "rank 1 has start weights: a checkpoint with fingerprint .* rank 0 has start weights")
        self.assertRegex(self.start_apart(arguments("run", "a"), arguments("else", "a")),
                         "rank 1 has run directory: .*else, rank 0 has run directory: .*run")
        shutil.copytree(self.folder / "data", self.folder / "data2")
        with (self.folder / "data2/val.bin").open("r+b") as tokens:
            tokens.write(b"\1\0")
        first = arguments("run", "a")
        second = [self.folder / "data2" if word == self.path("data") else word for word in first]
        self.assertRegex(self.start_apart(first, second),
                         "rank 1 has fingerprint of the validation tokens")
        self.assertFalse((self.folder / "run").exists())


if __name__ == "__main__":
    main()
