"""A run's life: from its configuration to evaluations, texts, kept and exported checkpoints.
usage: train_test.py PROGRAM"""
import re

from program_test_case import LLAMA, MODEL, ProgramTestCase, main

# A public ds_config.json's shape: comments, strings and offload sections as people have them.
DEEPSPEED = """{
  // ZeRO-2 with everything off the device
  "train_micro_batch_size_per_gpu": 4,  # per GPU
  "gradient_accumulation_steps": 2,
  "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12},
  "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8}},
  "zero_optimization": {
    "stage": 2, "overlap_comm": true, /* streams */
    "offload_optimizer": {"device": "cpu", "pin_memory": true},
    "offload_param": {"device": "cpu", "pin_memory": true}
  }
}"""


class Life(ProgramTestCase):
    def evaluated(self, *model) -> float:
        return self.document("eval", *model, "--data", "data", "--batch", 4)["loss"]

    def test_trains_evaluates_generates_and_exports(self):
        report = self.document(*self.train("run", 60, "--nvme", self.drive("disk")))
        self.assertLess(report["loss"], 3.0)
        self.assertGreater(report["state_bytes_written"], 0)
        self.assertEqual(len(self.metrics("run")), 60)
        self.succeed("export", "run", "hf")
        for model in (["--run", "run"], ["--model", "hf"]):
            self.assertEqual(self.evaluated(*model), report["val_loss"])
        texts = [self.document("generate", "--run", "run", "--prompt", "Bles", "--tokens", 20,
                               "--seed", 5) for _ in range(2)]
        self.assertEqual(len(texts[0]["tokens"]), 24)
        self.assertEqual(*texts)
        self.assertEqual(self.document("info", "run")["step"], 60)
        self.assertEqual(self.document("info", "hf")["kind"], "hf_checkpoint")
        self.assertEqual(self.document("info", "data")["vocab_size"], 256)

    def test_says_that_dropout_is_not_trained(self):
        self.write("model.json", MODEL | {"resid_pdrop": 0.25})
        told = self.succeed(*self.train("run", 1)).stderr
        self.assertIn("dropout 0.25 of the model's config.json is trained as 0", told)

    def test_generates_beyond_the_context_of_the_run(self):
        self.configure(context=8)
        self.succeed(*self.train("run", 1))
        self.succeed("export", "run", "hf")
        texts = [self.document("generate", *model, "--prompt-tokens", "1 2 3 4 5 6 7 8 9 10",
                               "--tokens", 4)["tokens"]
                 for model in (["--run", "run"], ["--model", "hf"])]
        self.assertEqual(*texts)  # of 16 positions each

    def test_a_configuration_written_for_deepspeed_trains_as_it_is(self):
        self.write("train.json", DEEPSPEED)
        self.succeed(*self.train("run", 4))
        lines = self.metrics("run")
        self.assertEqual((len(lines), lines[0]["scale"]), (4, 4096))
        self.assertLess(lines[3]["loss"], 6.0)

    def test_keeps_checkpoints_from_which_a_new_run_goes_on_bit_for_bit(self):
        self.configure(save_every=4, keep=2, eval_every=10)
        self.succeed(*self.train("run", 2))
        kept = self.folder / "run/checkpoints"
        # What a process that was killed while it copied leaves behind.
        (kept / "step-3/state").mkdir(parents=True)
        self.succeed(*self.train("run", 14, "--resume"))
        self.assertEqual(self.document("info", "run")["kept_checkpoints"], [8, 12])
        self.assertEqual({path.name for path in kept.iterdir()}, {"step-8", "step-12"})
        (kept / "step-8").rename(self.folder / "moved")
        self.assertEqual(self.document("info", "moved")["step"], 8)
        self.succeed("eval", "--run", "moved", "--data", "data")

        def fork(name, *more):
            return self.succeed("train", "train.json", "--from", "moved", "--data", "data", "--run",
                                name, "--steps", 14, *more)

        fork("fork", "--nvme", self.drive("disk"))
        self.assertEqual(self.results("fork"), self.results("run")[8:])
        self.assertEqual(self.weights("fork"), self.weights("run"))
        self.assertIn("seed: 3 in the run, 99 now", fork("other", "--seed", 99).stderr)
        # The checkpoint itself is never trained on.
        self.assertIn("start a new run from it",
                      self.refused(*self.train("moved", 14, "--resume")))


class OperatorTiles(ProgramTestCase):
    """A model whose layers are larger than the device."""

    def setUp(self):
        super().setUp()
        self.write("model.json", LLAMA | {"intermediate_size": 2048,
                                          "max_position_embeddings": 16})

    def arguments(self, tile, steps=20, *more) -> list:
        """One layer and its gradients take 3.4 MB."""
        self.configure({"train_micro_batch_size_per_gpu": 1}, operator_tile=tile,
                       host_memory="64MiB")
        return self.train("run", steps, "--device-memory", "2MiB", *more)

    def test_advised_for_a_too_small_device_train_and_export_whole_matrices(self):
        advised = re.search(r"spillway\.operator_tile (\d+)",
                            self.refused(*self.arguments(0), code=3))
        self.assertIsNotNone(advised)
        loss = self.document(*self.arguments(int(advised[1])))["val_loss"]
        self.assertLess(loss, 5.0, "5.5 before the first step")
        evaluate = ("--data", "data", "--batch", 4)
        of_run = self.document("eval", "--run", "run", *evaluate)["loss"]
        # Layers run whole there: sums in other orders.
        self.assertAlmostEqual(of_run, loss, delta=1e-5 * loss)
        self.succeed("export", "run", "hf")
        self.assertEqual(self.document("eval", "--model", "hf", *evaluate)["loss"], of_run)

    def test_of_another_size_are_another_mathematics(self):
        self.succeed(*self.arguments(65536))
        self.assertIn("operator_tile", self.refused(*self.arguments(32768, 22, "--resume")))

    def test_below_a_row_are_refused_by_name(self):
        self.assertIn("2048", self.refused(*self.arguments(2047)))


if __name__ == "__main__":
    main()
