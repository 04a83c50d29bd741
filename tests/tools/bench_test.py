"""`spillway bench` from outside: small runs, their documents and their refusals.
usage: bench_test.py PROGRAM"""

import os
import pathlib

from program_test_case import LLAMA, ProgramTestCase, main


class Adam(ProgramTestCase):
    def test_reports_every_format_against_its_traffic(self):
        document = self.document("bench", "adam", "--size", "1Mi", "--repetitions", 3, "--threads",
                                 "1,2", "--prefetch", 0)
        self.assertEqual(len(document["results"]), 8)
        self.assertGreater(document["fraction_of_limit"], 0)
        for result in document["results"]:
            self.assertEqual(result["parameters"], 1 << 20)
            self.assertIs(result["exact"], True)
            self.assertGreater(result["ns_per_parameter"], 0)
            self.assertAlmostEqual(result["gb_per_s"] * result["ns_per_parameter"],
                                   result["bytes_per_parameter"], delta=1e-6)
        self.assertEqual(document["results"][0]["bytes_per_parameter"], 28)

    def test_prints_a_table_and_measures_denormals(self):
        table = self.succeed("bench", "adam", "--size", "64Ki", "--repetitions", 1, "--format",
                             "fp32", "--isa", "scalar", "--denormals").stdout
        self.assertIn("of limit", table)
        self.assertIn("below the normal range", table)

    def test_takes_sizes_and_tiles_in_turn_and_says_how_far_apart_they_are(self):
        document = self.document("bench", "adam", "--size", "64Ki,300000/80Ki", "--repetitions", 2,
                                 "--format", "fp32,int8", "--prefetch", 0)
        results = document["results"]
        self.assertEqual(len(results), 4)
        self.assertEqual(results[0]["tile"], 0)
        self.assertEqual((results[3]["parameters"], results[3]["tile"]), (300_000, 80 << 10))
        for result in results:
            self.assertIs(result["exact"], True)
            skew = result["limit"]["skew"]
            self.assertTrue(skew is None or skew >= 0, skew)
            self.assertGreater(result["limit"]["median_ns"], 0)
            self.assertGreater(result["fraction_of_layout"], 0)
        self.assertEqual(len(document["spread"]), 2)
        self.assertEqual(document["spread"][1]["format"], "int8")
        self.assertGreaterEqual(document["spread"][1]["ratio"], 1)

    def test_uses_every_physical_core_unless_told_otherwise(self):
        document = self.document("bench", "adam", "--size", "64Ki", "--repetitions", 1, "--format",
                                 "fp32", "--prefetch", 0)
        cores = {pathlib.Path(f"/sys/devices/system/cpu/cpu{each}/topology/thread_siblings_list")
                 .read_text() for each in os.sched_getaffinity(0)}
        self.assertEqual(document["results"][0]["threads"], len(cores))

    def test_names_what_it_does_not_know(self):
        for flag, value in (("--format", "fp8"), ("--isa", "sse9"), ("--gradient", "int4"),
                            ("--size", "4Kj"), ("--size", "4Ki/x")):
            self.assertIn(value, self.refused("bench", "adam", flag, value, "--repetitions", 1))
        self.refused("bench", "adam", "--format", "split", "--parameters", "fp16")
        self.refused("bench")

    def test_says_that_a_peer_cannot_be_run(self):
        said = self.refused("bench", "adam", "--size", "4Ki", "--repetitions", 1, "--format",
                            "fp32", "--compare", "torch", "--python", "/nowhere/python", code=1)
        self.assertIn("/nowhere/python", said)


class Comm(ProgramTestCase):
    def test_compares_all_reduces_and_parameter_servers_by_what_they_send(self):
        document = self.document("bench", "comm", "--ranks", 4, "--size", "1MiB", "--repetitions",
                                 2)
        self.assertGreater(document["fraction_of_limit"], 0)
        self.assertGreater(document["copy_gb_per_s"], 0)
        results = {result["operation"]: result for result in document["results"]}
        # A ring sends 1.5 MiB of 1 MiB; a master or a server sends it to each of the three others.
        for name, sent, exact in (("all_reduce", 3 << 19, True),
                                  ("all_reduce.ring", 3 << 19, False),
                                  ("all_reduce.each_to_all", 3 << 20, True),
                                  ("all_reduce.master", 3 << 20, True),
                                  ("parameter_server.synchronous", 3 << 20, True),
                                  ("parameter_server.asynchronous", 3 << 20, None),
                                  ("parameter_server.geo", 3 << 20, None)):
            with self.subTest(operation=name):
                result = results[name]
                self.assertEqual(result["sent_bytes"], sent)
                self.assertGreater(result["median_s"], 0)
                self.assertIs(result.get("exact"), exact)
                self.assertEqual(result.get("mathematics"), "other" if exact is None else None)
        self.assertNotIn("exact", results["broadcast"])
        table = self.succeed("bench", "comm", "--ranks", 2, "--size", "64KiB", "--repetitions", 1)
        self.assertIn("other mathematics", table.stdout)

    def test_prints_a_table_and_knows_the_limit_of_a_link(self):
        # An all-reduce of 1 MiB moves 1 MiB each way for each of two ranks: 10.5 ms at 0.1 GB/s.
        table = self.succeed("bench", "comm", "--ranks", 2, "--size", "1MiB", "--repetitions", 1,
                             "--dtype", "bf16", "--link", 0.1).stdout
        self.assertIn("10.49 ms", table)
        self.refused("bench", "comm", "--backend", "single", "--link", 1)
        self.refused("bench", "comm", "--size", "1KiB")

    def test_measures_five_times_unless_told_otherwise(self):
        document = self.document("bench", "comm", "--ranks", 2, "--size", "64KiB")
        for result in document["results"]:
            self.assertEqual(len(result["seconds"]), 5, result["operation"])


class Pipeline(ProgramTestCase):
    # The times are those of a machine that does other things: tools/reproduce looks at them.
    def test_keeps_and_simulates_what_is_published(self):
        document = self.document("bench", "pipeline", "--forward-ms", 1, "--backward-ms", 2,
                                 "--steps", 1)
        self.assertEqual((document["stages"], document["rounds"]), (4, 8), "the documented ones")
        self.assertEqual(len(document["results"]), 8)
        self.assertEqual(document["wrong_activations"], 0)
        for result in document["results"]:
            # Where stages are never said to meet, ours do so for 1 % of the time.
            published = result["published_bubble"]
            self.assertAlmostEqual(result["simulated_bubble"], published, msg=result["schedule"],
                                   delta=1e-9 if published > 0 else 0.01)
            self.assertGreater(result["bubbles"][0], -1e-3)
            measured = result["bubble"] - published
            self.assertAlmostEqual(result["error"], abs(measured) / (published or 1))
        self.refused("bench", "pipeline", "--stages", 4, "--rounds", 6)


class Step(ProgramTestCase):
    def setUp(self):
        super().setUp()
        self.write("model.json", LLAMA | {"num_hidden_layers": 3})
        scratch = self.drive("scratch")
        self.addCleanup(lambda: self.assertEqual(list(scratch.iterdir()), []))

    def arguments(self, tokens, *more) -> list:
        return ["bench", "step", "--model", "model.json", "--context", 32, "--tokens-per-step",
                tokens, "--steps", 2, "--scratch", "scratch", *more]

    def test_reports_speed_and_every_tier_and_leaves_nothing_behind(self):
        disk = self.drive("disk")
        document = self.document(*self.arguments(
            200, "--layers", 2, "--micro-batch", 2, "--rounds", 2, "--device", "host",
            "--device-memory", "1MiB", "--nvme", disk, "--profile", "", "--threads", 1))
        self.assertEqual(document["layers"], 2)
        # 2 rounds of 2 micro-batches of 2 x 32.
        self.assertEqual(document["tokens_per_step"], 256)
        self.assertEqual(document["state_format"], "split")
        self.assertEqual(len(document["step_seconds"]["each"]), 2)
        self.assertAlmostEqual(
            document["tokens_per_second"] * document["step_seconds"]["median"], 256, delta=1e-6)
        # One layer: 6 FLOPs a weight, 6 * context * width of causal attention; the head's 6 * 64 *
        # 256.
        weights = 64 * (2 * 64 + 2 * 32 + 3 * 128)
        self.assertEqual(document["model_flops_per_token"],
                         2 * (6 * weights + 6 * 32 * 64) + 6 * 64 * 256)
        self.assertGreater(document["mfu"], 0)
        memory, moved = document["memory"], document["bytes_moved"]
        for tier in ("device", "host"):
            self.assertEqual(memory[tier]["high_water"], memory[tier]["planned"], tier)
        # The swap file's header and records come on top of what the plan counts.
        self.assertGreaterEqual(memory["nvme"]["high_water"], memory["nvme"]["planned"])
        self.assertEqual(document["placement"]["state_nvme"], document["placement"]["blocks"])
        self.assertGreater(moved["nvme_write"], moved["nvme_read"])
        self.assertGreater(moved["h2d"], 0)
        # Random weights know nothing: the loss is that of a guess, ln 256 = 5.545.
        self.assertAlmostEqual(document["loss"]["first"], 5.545, delta=0.1)
        self.assertEqual(list(disk.iterdir()), [])

    def test_compares_itself_with_the_resident_model_alone(self):
        table = self.succeed(*self.arguments(64, "--limit", "--device", "host", "--compute",
                                             "fp32")).stdout
        self.assertIn("with the model resident and no optimizer", table)
        self.assertIn("state format fp32", table)

    def test_runs_on_ranks_that_are_threads(self):
        replicated, sharded = (self.document(*self.arguments(
            128, "--compute", "fp32", "--ranks", 2, "--stage", stage, "--link", 0.02, "--threads",
            1)) for stage in (0, 3))
        self.assertEqual(sharded["tokens_per_step"], 128)
        self.assertEqual(sharded["loss"], replicated["loss"])
        # Of 2 P and 3 P bytes, each rank sends the half that it has (ZeRO, section 7); but the head
        # is gathered once for forward and backward.
        sent, more = (each["bytes_moved"]["net"] for each in (replicated, sharded))
        self.assertLess(more, 1.5 * sent)
        self.assertGreater(more, 1.25 * sent)
        self.assertGreaterEqual(sent, 4 * replicated["parameters"])
        for each in (replicated, sharded):
            self.assertGreater(each["step_seconds"]["median"],
                               0.9 * each["bytes_moved"]["net"] / 0.02e9)
        table = self.succeed(*self.arguments(64, "--compute", "fp32", "--ranks", 2, "--stage", 1,
                                             "--threads", 1)).stdout
        self.assertIn("ranks      2, stage 1; 1 share out matrices, and 1 stage(s) layers", table)

    def test_clips_the_share_of_steps_that_it_is_asked_for(self):
        disk = self.drive("disk")
        for share, clipped in ((0, 0), (0.5, 1), (1, 2)):
            document = self.document(*self.arguments(
                64, "--device", "host", "--nvme", disk, "--profile", "", "--threads", 1,
                "--warmup", 0, "--commit", "--update", "speculative", "--clip-share", share))
            self.assertEqual(document["clipped_steps"], clipped)
            self.assertTrue(document["commits"])
            self.assertTrue(0 <= document["device_idle_share"] < 1, document)
        # Without --clip-share the limit is what --clip says.
        for limit, clipped in ((1e-9, 2), (1e9, 0)):
            document = self.document(*self.arguments(64, "--device", "host", "--clip", limit))
            self.assertEqual((document["clip"], document["clipped_steps"]), (limit, clipped))
            self.assertFalse(document["commits"])
        self.refused(*self.arguments(64, "--clip-share", 1.5))

    def test_refuses_what_it_cannot_train(self):
        self.assertIn("llama-3-8b", self.refused("bench", "step", "--model", "llama-9-8b"))
        self.assertIn("--seed: -1 is", self.refused("bench", "step", "--seed", -1))
        for code, *wrong in ((2, "--compute", "fp8"), (2, "--ranks", 0),
                             (2, "--ranks", 2, "--stage", 4), (3, "--device-memory", "64KiB")):
            self.refused("bench", "step", *wrong, code=code)


if __name__ == "__main__":
    main()
