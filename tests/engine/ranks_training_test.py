"""`mpirun -n 2 spillway train`: the stages of ZeRO agree with each other and with one rank, a job
goes on from what its ranks and other numbers of ranks have saved, and what cannot work says why.
usage: ranks_training_test.py LAUNCHER... SPILLWAY"""
import os
import re
import shutil
import socket
import subprocess

from ranks_job import LAUNCHER, JobTest, config, main, start

RANKS = 2


class Training(JobTest):
    def test_every_stage_has_the_metrics_of_one_rank(self):
        self.trained("one", config(0), 6, ranks=1)
        expected = self.results("one")
        self.assertEqual(len(expected), 6)
        for stage in range(4):
            self.trained(f"stage{stage}", config(stage), 6)
            self.assertEqual(self.results(f"stage{stage}"), expected, stage)
            folder = self.folder / f"stage{stage}" / "rank-0001"
            self.assertTrue((folder / "manifest.json").exists())
            self.assertFalse((folder / "metrics.jsonl").exists())

    def test_a_pipeline_has_the_metrics_of_one_rank(self):
        def options(zero, stages, **own):
            return config(zero, batch=4, eval_every=1, **own) | {"pipeline": {"stages": stages}}

        chunks = {"pipeline_schedule": "interleaved", "pipeline_chunks": 2}
        self.trained("one", options(0, 1), 6, ranks=1)
        expected = self.results("one")
        grids = {"1f1b": (options(0, 2), 2), "zero3": (options(3, 2), 4)}
        for name, (options_of_grid, ranks) in grids.items():
            with self.subTest(grid=name):
                self.trained(name, options_of_grid, 3, ranks=ranks)
                self.trained(name, options_of_grid, 6, "--resume", ranks=ranks)
                self.assertEqual(self.results(name), expected)
        self.assertEqual(self.weights("zero3"), self.weights("one"))
        self.trained("one", options(0, 1), 8, "--resume", ranks=1)
        self.trained("apart", options(0, 3), 8, "--from", self.folder / "zero3", ranks=3)
        self.assertEqual(self.results("apart"), self.results("one")[-2:])
        # Stage 0 has the embedding alone, and next to nothing to do.
        uneven = options(0, 2, pipeline_parts=[1, 3])
        output = self.trained("uneven", uneven, 6, ranks=2)
        self.assertEqual(self.results("uneven"), expected)
        self.assertLess(float(re.search(r"predicted +([\d.]+) s a step", output)[1]), 10)
        self.fail_with("spillway.pipeline_chunks: 1 in the run, 2 now", "1f1b",
                       options(0, 2, **chunks), 9, "--resume")
        self.fail_with("pipeline.stages is 3, which does not divide the number of ranks, 2",
                       "new", options(0, 3), 1)

    def test_a_tensor_group_trains_on_every_grid(self):
        def options(zero, tensor, stages=1, **own):
            return config(zero, batch=4, eval_every=1, **own) | {
                "pipeline": {"stages": stages}, "tensor_parallel": {"autotp_size": tensor}}

        self.trained("one", options(0, 1), 4, ranks=1)
        self.trained("two", options(0, 2), 4)
        one, two = self.results("one"), self.results("two")
        for of_one, of_two in zip(one, two, strict=True):
            for key in ("loss", "val_loss", "grad_norm"):
                if key in of_one:  # sums of fp32 in another order
                    self.assertAlmostEqual(of_two[key] / of_one[key], 1, delta=1e-5)
        self.trained("grid", options(3, 2, stages=2), 2, ranks=8)
        self.trained("grid", options(3, 2, stages=2), 4, "--resume", ranks=8)
        self.assertEqual(self.results("grid"), two)
        self.assertEqual(self.weights("grid"), self.weights("two"))
        self.trained("apart", options(1, 1), 6, "--from", self.folder / "grid")
        self.fail_with("tensor_parallel.autotp_size: 2 in the run, 4 now", "grid",
                       options(3, 4), 6, "--resume", ranks=8)
        self.fail_with("the model has 4 heads.*use at most 4 ranks", "new", options(0, 5), 1,
                       ranks=5)
        self.fail_with("tensor_parallel.autotp_size is 2, which does not divide the number of "
                       "ranks, 3", "new", options(0, 2), 1, ranks=3)
        self.fail_with("operator_tile excludes tensor_parallel.autotp_size", "new",
                       options(0, 2, operator_tile=4096), 1)

    def test_stale_weights_are_named_and_not_resumed(self):
        def options(schedule, **own):
            own = {"pipeline_schedule": schedule, "eval_every": 0} | own
            return config(0, batch=4, **own) | {"pipeline": {"stages": 2}}

        self.trained("flushed", options("1f1b"), 6)
        stale = options("pipedream_2bw")
        output = self.trained("stale", stale, 6, ranks=2)
        # Some launchers have a terminal of their own, on which lines are wrapped.
        self.assertIn("; stale weights", output)
        self.assertIn("(other mathematics), 1 version(s) beside the newest", output)
        self.assertIn("this run cannot be resumed once it has ended", output)
        losses = [step["loss"] for step in self.results("stale")]
        flushed = [step["loss"] for step in self.results("flushed")]
        self.assertEqual(losses[0], flushed[0])
        self.assertNotEqual(losses[1], flushed[1])
        # An evaluation takes the memory of rounds in flight.
        self.trained("evaluated", options("pipedream_2bw", eval_every=2), 6)
        self.assertEqual([step["loss"] for step in self.results("evaluated")], losses)
        self.fail_with("stale weights cannot be resumed", "stale", stale, 8, "--resume")
        self.fail_with("spillway.pipeline_schedule: \"pipedream_2bw\" in the run, absent now",
                       "stale", options("1f1b"), 8, "--resume")
        self.trained("next", stale, 2, "--from", self.folder / "stale")
        each = options("pipedream") | {"train_batch_size": 1}
        self.trained("each", each, 6)
        self.trained("each_evaluated", each | {"spillway": each["spillway"] | {"eval_every": 2}}, 6)
        self.assertEqual([step["loss"] for step in self.results("each_evaluated")],
                         [step["loss"] for step in self.results("each")])
        # Stages that need no norm for the update seldom meet, and tell all losses then.
        seldom = each | {"gradient_clipping": 0, "spillway": each["spillway"]
                         | {"pipeline_meet_every": 4, "save_every": 3}}
        output = self.trained("seldom", seldom, 6, ranks=2)
        self.assertIn("the stages meet after every 4 steps", output)
        self.trained("often", seldom | {"spillway": each["spillway"]}, 6)
        self.assertEqual(self.results("seldom"), self.results("often"))
        self.assertEqual([step["step"] for step in self.results("seldom")], [1, 2, 3, 4, 5, 6])
        self.fail_with("pipeline_meet_every is 4, and gradient_clipping needs the norm", "new",
                       seldom | {"gradient_clipping": 1}, 1)
        self.fail_with("updates after each micro-batch", "new", options("pipedream"), 1)

    def test_a_job_goes_on_from_the_last_step_that_every_rank_has_committed(self):
        options = config(1, eval_every=1)
        self.trained("whole", options, 9)
        self.trained("run", options, 5)
        shutil.copytree(self.folder / "run", self.folder / "five")
        self.trained("run", options, 6, "--resume")
        shutil.copytree(self.folder / "run", self.folder / "six")
        for behind in range(RANKS):
            with self.subTest(behind=behind):
                self.mix("six", "five", behind)
                self.trained("run", options, 9, "--resume")
                self.assertEqual(self.results("run"), self.results("whole"))
        shutil.rmtree(self.folder / "six")
        (self.folder / "run").rename(self.folder / "six")  # which has nine steps now
        self.mix("six", "five", 1)
        self.fail_with("rank 1 has committed step 5, and rank 0 step 9, from which it cannot go",
                       "run", options, 9, "--resume")

    def mix(self, ahead, behind, rank):
        """Makes `run` what a kill leaves when `rank` has not committed the last step."""
        run = self.folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        first = behind if rank == 0 else ahead
        other = behind if rank == 1 else ahead
        shutil.copytree(self.folder / first, run)
        shutil.rmtree(run / "rank-0001")
        shutil.copytree(self.folder / other / "rank-0001", run / "rank-0001")

    def test_what_other_ranks_note_is_in_their_directories(self):
        self.trained("old", config(1), 1)
        (self.folder / "old/rank-0001/notes.log").unlink(missing_ok=True)  # of a busy machine
        (self.folder / "old").rename(self.folder / "run")
        self.trained("run", config(1), 2, "--resume")
        self.assertIn(f"the run was in {self.folder}/old/rank-0001 before\n",
                      (self.folder / "run/rank-0001/notes.log").read_text())

    def test_another_number_of_ranks_is_refused(self):
        self.trained("run", config(1), 2)
        self.fail_with("was trained by 2 rank.s., and this job has 3",
                       "run", config(1) | {"train_batch_size": 6}, 3, "--resume", ranks=3)
        self.fail_with("was trained by 2 rank.s., and this job has 1",
                       "run", config(1), 3, "--resume", ranks=1)
        self.fail_with("another zero_optimization.stage.*--from .*run --run NEW",
                       "run", config(3), 3, "--resume")

    def test_a_new_run_goes_on_from_what_another_number_of_ranks_has_saved(self):
        self.trained("whole", config(0, batch=24), 7, ranks=1)
        four = self.folder / "four"
        self.trained("four", config(1, batch=24, save_every=2), 4, ranks=4)
        kept = four / "checkpoints"
        self.assertEqual(sorted(os.listdir(kept)), ["step-2", "step-4"])
        self.assertEqual(self.weights(kept / "step-4"), self.weights(four))
        for ranks, stage, home, origin, steps in [
                (1, 0, "nvme", four, 3), (2, 3, "host", kept / "step-2", 5),
                (3, 1, "nvme", kept / "step-2", 5), (8, 2, "host", four, 3)]:
            with self.subTest(ranks=ranks):
                options = config(stage, batch=24, state_home=home)
                run = f"from-four-{ranks}"
                self.trained(run, options, 7, "--from", origin, ranks=ranks)
                self.assertEqual(self.results(run)[-steps:], self.results("whole")[-steps:])

    def test_ranks_that_differ_are_named(self):
        first = self.arguments("run", config(1), 2)
        second = self.arguments("run", config(1, seed=7), 2)
        job = start([*LAUNCHER, "1", *first, ":", LAUNCHER[-1], "1", *second])
        output = job.communicate(timeout=120)[0]
        self.assertNotEqual(job.returncode, 0)
        self.assertIn("rank 1 has spillway.seed: 7, rank 0 has spillway.seed: 1234", output)
        self.assertFalse((self.folder / "run").exists())

    def test_all_ranks_hear_what_is_wrong_with_the_configuration_of_one(self):
        first = self.arguments("run", config(1), 2)
        for wrong, told in [("missing.json", "missing.json: No such file"),
                            (self.write("broken.json", "{"), "broken.json: not JSON")]:
            second = [*first[:2], wrong, *first[3:]]
            job = start([*LAUNCHER, "1", *first, ":", LAUNCHER[-1], "1", *second])
            output = job.communicate(timeout=120)[0]
            self.assertNotEqual(job.returncode, 0)
            self.assertRegex(output, f"rank 1 of 2: .*{told}")
            if "start_ranks" in " ".join(LAUNCHER):  # mpirun may end rank 0 before it says so
                self.assertRegex(output, f"rank 0 of 2: rank 1 has abandoned the group: .*{told}")
            self.assertFalse((self.folder / "run").exists())

    def test_a_process_that_does_not_come_to_mpi_is_not_waited_for_without_end(self):
        job = start([*LAUNCHER, "1", *self.arguments("run", config(0, timeout=2), 1), ":",
                     LAUNCHER[-1], "1", "sleep", "60"])
        output = job.communicate(timeout=50)[0]
        self.assertNotEqual(job.returncode, 0)
        self.assertIn("MPI has not started within 2 s", output)

    def test_ranks_that_cannot_meet_are_refused(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            launched = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                        "SPILLWAY_MASTER_PORT": str(port)}
            done = subprocess.run(self.arguments("run", config(0), 1), capture_output=True,
                                  encoding="utf-8", env=os.environ | launched, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("RANK=0 and WORLD_SIZE=2 say that there are 2 ranks, and rank 0 cannot meet",
                      done.stderr)
        self.assertNotIn("torchrun", done.stderr)
        self.assertIn(f"at port {port}: another program has it", done.stderr)
        self.assertFalse((self.folder / "run").exists())


if __name__ == "__main__":
    main()
