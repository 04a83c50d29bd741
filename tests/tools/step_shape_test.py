"""The shape of a step that a configuration leaves to the planner: searched once, recorded, kept.
usage: step_shape_test.py PROGRAM"""
import json

from identity_test_case import IdentityTestCase
from program_test_case import MACHINES, main

# One round of 8 micro-batches needs more device memory than this, 8 rounds do not.
TIGHT = {"activations": "device", "device_memory": "1000KiB"}


class OfAPlan(IdentityTestCase):
    def plan(self, rounds) -> list:
        self.write("large.json", {
            "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 16,
            "bf16": {"enabled": True}, "spillway": {"context": 4096, "rounds": rounds}})
        return ["plan", "large.json", "--model", "llama-3-8b", "--profile", "", "--layers", 8,
                "--machine", MACHINES / "h100.json", "--device-memory", "20GB"]

    def test_takes_least_of_those_that_are_planned_by_themselves(self):
        alone = {rounds: self.document(*self.plan(rounds)) for rounds in (1, 2, 4, 8, 16)}
        seconds = {rounds: plan["step_seconds"] for rounds, plan in alone.items()}
        best, second = sorted(seconds, key=seconds.get)[:2]
        self.assertGreater(best, 1)
        chosen = self.document(*self.plan("auto"))
        shape = chosen.pop("chosen_shape")
        self.assertEqual(shape.pop("next_best"), {
            "rounds": second, "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 16, "step_seconds": seconds[second]})
        self.assertEqual(shape, {
            "rounds": best, "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 16, "step_seconds": seconds[best]})
        self.assertEqual(chosen, alone[best])  # which says of no other rounds that they are faster
        said = self.succeed(*self.plan("auto")).stderr
        self.assertRegex(said, rf'spillway.rounds "auto": rounds {best}, .* next best, rounds '
                               rf'{second}, ')


class OfARun(IdentityTestCase):
    def configure(self, options=None, **section):
        super().configure({"gradient_accumulation_steps": 8, **(options or {})},
                          **({"rounds": "auto"} | TIGHT | section))

    def recorded(self, run) -> dict:
        return json.loads((self.path(run) / "config.json").read_text())["train"]

    def test_is_recorded_and_has_the_bits_of_a_run_that_was_given_it(self):
        told = self.trained("open").stderr
        self.assertEqual(told.count('spillway.rounds "auto": rounds'), 1)
        rounds = self.recorded("open")["spillway"]["rounds"]
        self.assertIn(rounds, (2, 4, 8))
        self.configure(rounds=rounds)
        self.assertNotIn('"auto": rounds', self.trained("given").stderr)
        self.expect_equal_runs("open", "given")
        self.configure(rounds=1, device_memory="8MiB")
        self.trained("one")
        self.assertNotEqual(self.weights("one"), self.weights("open"))

    def test_is_kept_by_a_run_that_goes_on_with_other_memory(self):
        with self.live("killed") as child:
            child.kill()
        rounds = self.recorded("killed")["spillway"]["rounds"]
        self.configure(rounds=rounds)  # a search of its own may find others
        self.trained("whole")
        self.configure(device_memory="8MiB")
        self.assertNotIn('"auto": rounds', self.trained("killed", 12, "--resume").stderr)
        self.expect_equal_runs("killed", "whole")
        self.configure(rounds=1, device_memory="8MiB")
        with self.unchanged("killed"):
            self.expect_refused(self.train("killed", 14, "--resume"), 2,
                                f"rounds: {rounds} in the run, 1 now")

    def test_is_searched_where_the_micro_batch_is_left_open_too(self):
        self.write("train.json", {"train_batch_size": 16, "train_micro_batch_size_per_gpu": "auto",
                                  "spillway": {"context": 16, "commit_every": 1, **TIGHT}})
        told = self.trained("open", 2).stderr
        self.assertEqual(told.count('spillway.rounds "auto": rounds'), 1)
        recorded = self.recorded("open")
        self.assertEqual(recorded["train_micro_batch_size_per_gpu"]
                         * recorded["gradient_accumulation_steps"], 16)
        self.trained("open", 4, "--resume", "--device-memory", "8MiB")
        self.assertEqual(self.recorded("open"), recorded)


if __name__ == "__main__":
    main()
