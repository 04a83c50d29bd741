"""`spillway plan`: what it says of a run, and of machines that are not here.
usage: plan_test.py PROGRAM"""
import json
import re

from program_test_case import MACHINES, ProgramTestCase, main


class OfARun(ProgramTestCase):
    def test_says_what_training_then_does(self):
        # So little that one plan alone fits: each start measures the machine's rates anew.
        budget = ("--device-memory", "700KiB")
        planned = self.document("plan", "train.json", "--model", "model.json", "--run", "run",
                                *budget)
        trained = self.document(*self.train("run", 5, *budget))
        self.assertEqual(trained["device_high_water"], planned["memory"]["device"]["bytes"])
        self.assertEqual(trained["plan"]["blocks"], planned["blocks"])
        low, high = planned["step_seconds_band"]
        self.assertLessEqual(low, planned["step_seconds"])
        self.assertLess(low, high)
        self.assertGreaterEqual(high, planned["step_seconds"])
        # With more memory the rates decide, and a run does what its own plan says.
        trained = self.document(*self.train("larger", 5, "--device-memory", "2MiB"))
        self.assertEqual(trained["device_high_water"],
                         trained["plan"]["memory"]["device"]["bytes"])

    def test_of_absurd_size_is_refused_by_name(self):
        plan = ("plan", "train.json", "--model", "model.json")
        self.assertIn("16385 layers", self.refused(*plan, "--layers", 16384 + 1))
        # Two layers, the embedding and the head, forward and backward: 2 Mi passes are the most.
        self.configure({"train_micro_batch_size_per_gpu": 1,
                        "gradient_accumulation_steps": 262145})
        self.assertIn("gradient_accumulation_steps 262145", self.refused(*plan, "--json"))


class OfAnotherMachine(ProgramTestCase):
    def arguments(self, machine, options, section) -> list:
        self.write("large.json", {
            "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, **options,
            "spillway": {"context": 4096, **section}})
        return ["plan", "large.json", "--model", "llama-3-8b", "--profile", "",
                *(["--machine", MACHINES / machine] if machine else [])]

    def test_says_which_rounds_would_be_faster(self):
        def arguments(section, machine="rtx-4090.json", memory=("--device-memory", "20GB")):
            return [*self.arguments(machine, {"gradient_accumulation_steps": 16}, section),
                    "--layers", 16, *memory]

        def planned(rounds, *elsewhere):
            return self.document(*arguments({"rounds": rounds}, *elsewhere))

        # A gain of 9 %: what room this processor's kernels take on the device decides nothing.
        seconds = {rounds: planned(rounds)["step_seconds"] for rounds in (1, 2, 4, 8, 16)}
        best = min(seconds, key=seconds.get)
        self.assertNotEqual(best, 1)
        self.assertEqual(planned(1)["faster_rounds"],
                         {"rounds": best, "step_seconds": seconds[best]})
        plan = arguments({})
        said = f"rounds     spillway.rounds {best}: {100 * (seconds[1] / seconds[best] - 1):.0f} %"
        self.assertIn(said, self.succeed(*plan, "-v").stdout)
        self.assertIn(f"spillway.rounds {best} gives {16 * 4096 / seconds[best]:.0f} tokens/s",
                      self.succeed(*plan).stdout)
        self.assertNotIn("faster_rounds", planned(best))
        # With room for everything, one pass is best.
        self.assertNotIn("faster_rounds", planned(1, "h100.json", ()))

    def test_is_said_in_five_lines(self):
        plan = self.arguments("rtx-4090.json", {"gradient_accumulation_steps": 16}, {})
        plan[plan.index("--machine") + 1] = self.write(
            "small.json", json.loads((MACHINES / "rtx-4090.json").read_text())
            | {"host_memory": "60GB"})
        short = self.succeed(*plan).stdout.splitlines()
        self.assertLessEqual(len(short), 5)
        said = self.succeed("-v", *plan).stdout
        planned = self.document(*plan)
        # In both, the step and its rate; of each memory, the sum of the table.
        for text in (short[1], said):
            self.assertIn(f"predicted  {planned['step_seconds']:.4f} s a step, ", text)
        for tier, name in (("device", "device"), ("host", "host"), ("nvme", "disk")):
            total = re.search(rf"^{tier} +(\S+ \S+ of \S+ \S+)$", said, re.M)[1]
            self.assertIn(f"{name} {total}", short[0])
        share = 100 * planned["lanes"]["nvme_write"]["exposed_seconds"] / planned["step_seconds"]
        self.assertIn(f"waits {share:.0f} % of it for disk writes", short[1])
        # A plan with the memory that would be faster is as fast as it says.
        size, unit, rate = re.search(r"^next       (\S+) (\S+) of host memory give (\d+) tokens",
                                     short[2]).groups()
        more = self.document(*plan, "--host-memory", f"{float(size) * 1.005}{unit}")
        self.assertAlmostEqual(more["tokens_per_step"] / more["step_seconds"] / float(rate), 1,
                               delta=0.02)
        self.assertGreater(float(rate), 1.01 * planned["tokens_per_step"]
                           / planned["step_seconds"])

    def test_tells_of_no_next_best_within_a_hundredth(self):
        for machine in ("rtx-4090.json", "h100.json", "b200.json"):
            plan = [*self.arguments(machine, {"gradient_accumulation_steps": 16}, {}),
                    "--layers", 8]
            planned = self.document(*plan)
            text = self.succeed(*plan, "-v").stdout
            step = planned["step_seconds"]
            told = [cut["next_best"] for cut in planned["cuts"] if "next_best" in cut and (
                "lacks" in cut["next_best"]
                or min(step, cut["next_best"]["step_seconds"])
                < 0.99 * max(step, cut["next_best"]["step_seconds"]))]
            self.assertEqual(text.count("next best, "), len(told))
            self.assertEqual(text.count(": faster by "),
                             sum(cut.get("step_seconds", step) < step for cut in told))

    def test_measures_nothing(self):
        plan = [*self.arguments("h100.json", {"gradient_accumulation_steps": 68},
                                {"context": 8192, "rounds": 68}), "--no-commits", "--json"]
        done = self.succeed(*plan)
        self.assertNotIn("deterministic", done.stderr)
        planned = json.loads(done.stdout)
        self.assertEqual(planned["tokens_per_step"], 557056)
        self.assertEqual(planned["parameters"], 8_030_261_248)
        speed = planned["speed"]
        self.assertEqual(speed["basis"], "assumed")
        # golden/flops.json prints 5.147e10 FLOPs a token; the data sheet's peak is 989.4 TFLOP/s.
        rate = speed["tokens_per_second"]
        self.assertAlmostEqual(speed["mfu"] / (rate * 5.147e10 / 989.4e12), 1, delta=1e-4)
        self.assertLess(rate, speed["resident_tokens_per_second"])
        self.assertEqual(planned["memory"]["nvme"]["bytes"], 0)
        self.assertEqual(planned["memory"]["device"]["budget"], 79_000_000_000)

        # An older description, which does not say what the deterministic backward pass costs.
        older = json.loads((MACHINES / "h100.json").read_text())
        older["attention_backward_tflops"] = 1.36 * 320
        del older["attention_backward_deterministic_tflops"]
        plan[plan.index("--machine") + 1] = self.write("older.json", older)
        done = self.succeed(*plan)
        self.assertIn("taken to be 1.36 times slower", done.stderr)
        guessed = json.loads(done.stdout)["speed"]["tokens_per_second"]
        self.assertAlmostEqual(guessed / rate, 1, delta=1e-9)
        self.refused(*plan, "--device-memory", "2GB", code=3)

    def test_checks_the_operations_of_every_list(self):
        self.write("small.json", {"train_micro_batch_size_per_gpu": 1,
                                  "spillway": {"context": 16, "state_home": "host"}})
        said = self.succeed("plan", "small.json", "--model", "model.json", "--profile", "",
                            "--machine", MACHINES / "h100.json", "--check", "--explain").stdout
        ops = re.findall(r"^ *(\d+) (?:gpu|h2d|d2h|cpu) +(\w+) +block=(\d+)", said, re.M)
        # Block by block; each operation keeps its number in the step.
        blocks = re.findall(r"^block (\d+) \((\S+)\): (\d+) operation", said, re.M)
        self.assertEqual([name for _, name, _ in blocks],
                         ["embedding", "layer.0", "layer.1", "head"])
        self.assertEqual([block for _, _, block in ops],
                         [block for block, _, count in blocks for _ in range(int(count))])
        self.assertEqual(sorted(int(number) for number, _, _ in ops), list(range(len(ops))))
        step = [name for _, name, _ in sorted(ops, key=lambda op: int(op[0]))]
        updates = step.count("update")
        # An evaluation is the step up to its loss without the updates, which are all of a flush. A
        # snapshot takes each tile's checksum, writes the tile and commits; a recorded step too.
        evaluation = step.index("loss") + 1 - updates
        snapshot = 2 * updates + 1
        operations = 2 * len(step) + evaluation + updates + 2 * snapshot
        self.assertIn(f"check      {operations} operations in 5 lists with ", said)

    def test_of_8_ranks_has_an_eighth_of_the_state_and_of_the_memory_for_each(self):
        options = {"zero_optimization": {"stage": 3}}, {"state_home": "host"}
        node = [*self.arguments("dgx-h100.json", *options), "--check", "--no-commits"]
        one = self.document(*node)
        eighth = self.document(*node, "--ranks", 8)
        self.assertEqual((eighth["ranks"], eighth["tokens_per_step"]), (8, 8 * 4096))
        # Padding: at most a leaf for each rank and block, 34 * 8 * 4096 of 8.03e9 parameters.
        for what in ("optimizer state", "parameters", "waiting gradients"):
            part, whole = (plan["memory"]["host"]["items"][what] for plan in (eighth, one))
            self.assertAlmostEqual(part * 8 / whole, 1, delta=1.4e-4, msg=what)
        self.assertEqual(eighth["memory"]["host"]["budget"], 1_900_000_000_000 // 8)
        # Between machines the network is slower.
        apart = self.document(*node, "--ranks", 8, "--nodes", 8)
        alone, near, far = (plan["lanes"]["net"]["busy_seconds"] for plan in (one, eighth, apart))
        self.assertEqual(alone, 0)
        self.assertGreater(near, 0)
        self.assertAlmostEqual(far / near, 340 / 45, delta=0.5)
        self.assertGreater(apart["gathered_ahead"], eighth["gathered_ahead"])

        self.assertIn("--machine", self.refused(*self.arguments(None, *options), "--ranks", 2))
        self.assertIn("8 GPU(s)", self.refused(*node, "--ranks", 16))
        for wrong in (["--ranks", 0], ["--nodes", 0], ["--ranks", 8, "--nodes", 3]):
            self.refused(*node, *wrong)

    def test_of_a_pipeline_is_that_of_its_longest_stage(self):
        plan = [*self.arguments("dgx-h100.json", {"gradient_accumulation_steps": 16,
                                                  "pipeline": {"stages": 4}}, {}), "--json"]
        done = self.succeed(*plan, "--ranks", 8)
        longest = json.loads(done.stdout)  # one of 4 stages, of 2 replicas
        self.assertEqual((longest["ranks"], longest["tokens_per_step"]), (2, 2 * 16 * 4096))
        self.assertEqual(longest["stage"]["count"], 4)
        (first, last), = longest["stage"]["layers"]
        self.assertAlmostEqual(last - first + 1, 34 / 4, delta=1.5)
        for stage in ("stage 0 of 4: layers 0 to", "stage 3 of 4: layers"):
            self.assertIn(stage, done.stderr)
        self.assertIn("pipeline.stages is 4", self.refused(*plan, "--ranks", 6))

    def test_says_how_many_blocks_keep_their_activations_on_the_host(self):
        arguments = [*self.arguments("h100.json", {"gradient_accumulation_steps": 16},
                                     {"context": 8192, "checkpointing": "offload"}),
                     "--device-memory", "200GB", "--host-memory", "900GB", "--no-commits"]
        plan = self.document(*arguments)
        self.assertTrue(all(block["keep"] is True for block in plan["blocks"]))
        away = sum(block["offload"] is True for block in plan["blocks"])
        # Some of the 32 layers' activations fit on the device, and not all.
        self.assertIn(away, range(1, 32))
        for tier in ("host", "device"):
            self.assertGreater(plan["memory"][tier]["items"]["saved activations"], 0)
        # The layers are cut in two ways, and each line says why another cut is none of them.
        layers = [cut for cut in plan["cuts"] if cut["kind"] == "layers"]
        self.assertEqual(sum(cut["blocks"] for cut in layers), 32)
        self.assertEqual(sum(cut["blocks"] for cut in layers if cut["saved"] == "host"), away)
        for cut in plan["cuts"]:
            self.assertTrue({"lacks", "step_seconds"} & cut["next_best"].keys(), cut)
        text = self.succeed(*arguments, "--verbose").stdout
        for said in (f"{away} of them on the host", "saved host, output device", "next best, "):
            self.assertIn(said, text)


if __name__ == "__main__":
    main()
