"""Budgets of commands that run a trained model.
usage: memory_test.py PROGRAM"""
import json

from program_test_case import ProgramTestCase, main


class BudgetsOfTrainedModels(ProgramTestCase):
    def setUp(self):
        super().setUp()
        self.succeed(*self.train("run", 2))

    def commands(self):
        return {"eval": ["eval", "--run", "run", "--data", "data", "--json"],
                "generate": ["generate", "--run", "run", "--tokens", "4", "--json"]}

    def test_within_them_the_answer_is_what_it_is_without(self):
        for name, command in self.commands().items():
            with self.subTest(command=name):
                free = self.run_program(*command)
                tight = self.run_program(*command, "--device-memory", "16MiB",
                                         "--host-memory", "16MiB")
                self.assertEqual(tight.returncode, 0, tight.stderr)
                self.assertEqual(json.loads(free.stdout), json.loads(tight.stdout))

    def test_a_model_beyond_one_is_refused_with_bytes_and_remedy(self):
        for name, command in self.commands().items():
            for memory in ("device", "host"):
                with self.subTest(command=name, memory=memory):
                    done = self.run_program(*command, f"--{memory}-memory", "40KiB")
                    self.assertEqual(done.returncode, 3, done.stderr)
                    self.assertRegex(done.stderr, f"{memory} memory needs [0-9.]+ .iB and the "
                                                  rf"budget is 40.0 KiB .--{memory}-memory.")
                    self.assertRegex(done.stderr, f"--{memory}-memory of at least [0-9.]+ .iB; "
                                                  "or fewer tokens")

    def test_a_batch_beyond_one_is_refused(self):
        said = self.refused("eval", "--run", "run", "--data", "data", "--batch", 1000000000, code=3)
        self.assertIn("does not fit: ", said)
        self.assertIn("eval: --batch", said)

    def test_a_budget_that_is_no_size_is_wrong_usage(self):
        for name, command in self.commands().items():
            with self.subTest(command=name):
                done = self.run_program(*command, "--device-memory", "much")
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn("much", done.stderr)


if __name__ == "__main__":
    main()
