"""Runs whose numbers end: every step has its line, and the state is that of the last one.
usage: divergence_test.py PROGRAM"""

from program_test_case import ProgramTestCase, main


class Divergence(ProgramTestCase):
    def diverge(self, config, *more):
        self.configure(config)
        done = self.run_program(*self.train("run", 100, *more))
        self.assertEqual(done.returncode, 1)
        lines = self.metrics("run")
        self.assertEqual([line["step"] for line in lines], list(range(1, len(lines) + 1)))
        self.assertTrue(lines[-1]["skipped"])
        self.assertIn(f"step {lines[-1]['step']}: ", done.stderr)
        self.assertEqual(self.document("info", "run")["step"], len(lines))
        return done, lines

    def test_ten_steps_without_finite_gradients(self):
        huge = {"optimizer": {"type": "SGD", "params": {"lr": 1e30}}}
        done, lines = self.diverge(huge)
        self.assertIn("10 steps in a row had non-finite gradients", done.stderr)
        self.assertEqual([line["skipped"] for line in lines[-11:]], [False] + 10 * [True])
        # It does not take ten more to know it again.
        again, more = self.diverge(huge, "--resume")
        self.assertEqual(len(more), len(lines) + 1)
        self.assertIn("11 steps in a row", again.stderr)

    def test_the_least_loss_scale(self):
        done, lines = self.diverge({
            "fp16": {"enabled": True, "initial_scale_power": 100, "min_loss_scale": 2.0 ** 99,
                     "hysteresis": 1}})
        self.assertIn("at the least loss scale", done.stderr)
        self.assertEqual([line["scale"] for line in lines], [2.0 ** 100, 2.0 ** 99])


if __name__ == "__main__":
    main()
