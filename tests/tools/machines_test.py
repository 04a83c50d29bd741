"""`spillway plan --machine NAME` and `--machines`: machines that are not here, by name.
usage: machines_test.py PROGRAM"""
import json
import os
import subprocess
import sys

from program_test_case import MACHINES, PROGRAM, ROOT, ProgramTestCase, main

SMALL = ("--model", "gpt2")  # fits everywhere and is planned fast


class NamedMachines(ProgramTestCase):
    def setUp(self):
        super().setUp()
        os.environ["SPILLWAY_DEVICE"] = "cuda"  # as where a GPU is

    def test_need_neither_a_file_nor_a_configuration(self):
        said = self.succeed("plan", "--machine", "rtx-4090", "--model", "llama-3-8b", "-v").stdout
        self.assertIn("65536 tokens: 1 round(s)", said)
        self.assertIn("machine    rtx-4090: NVIDIA GeForce RTX 4090", said)
        planned = self.document("plan", "--machine", "rtx-4090-64gb-2ssd", *SMALL)
        self.assertEqual(planned["tokens_per_step"], 65536)
        for tier, budget in (("device", 23), ("host", 60), ("nvme", 7200)):
            self.assertEqual(planned["memory"][tier]["budget"], budget * 10**9)
        # A configuration and flags count as without a name.
        self.write("given.json", {"train_micro_batch_size_per_gpu": 1, "spillway": {"context": 16}})
        planned = self.document("plan", "given.json", "--model", "model.json", "--machine",
                                "h100-64gb", "--host-memory", "30GB")
        self.assertEqual(planned["memory"]["host"]["budget"], 30 * 10**9)
        self.assertEqual(planned["tokens_per_step"], 16)

    def test_are_planned_as_their_files(self):
        named, described = (self.document("plan", "--machine", machine, *SMALL)
                            for machine in ("b200", MACHINES / "b200.json"))
        self.assertEqual(named["speed"].pop("machine"),
                         "b200: " + described["speed"].pop("machine"))
        self.assertEqual(named, described)

    def test_say_what_their_gpu_keeps_in_attention(self):
        self.write("long.json", {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
                                 "spillway": {"context": 32768}})
        described = json.loads((MACHINES / "b200.json").read_text())
        del described["generation"]
        self.write("any.json", described)
        known, any_gpu = (
            self.document("plan", "long.json", "--machine", machine, "--model", "mistral-7b",
                          "--device-memory", "60GB")["memory"]["device"]["items"]
            for machine in ("b200", "any.json"))
        # Gradients of scores: 2 bytes for each pair of positions and each of 4 query heads.
        self.assertGreater(any_gpu["operator workspace"] - known["operator workspace"],
                           7 * 10**9)

    def test_and_models_that_nobody_knows_are_refused_with_the_nearest(self):
        for machine, near in (("rtx4090", "rtx-4090"), ("h10", "h100"), ("l40", "l40s"),
                              ("rtx-5090-32gb", "rtx-5090-")):
            said = self.refused("plan", "--machine", machine, *SMALL)
            self.assertIn(f'no machine is called "{machine}"', said)
            self.assertIn(f"names like it are {near}", said)
        said = self.refused("plan", "--machine", "h100", "--model", "lama3-8b")
        self.assertIn("did you mean llama-3-8b?", said)
        self.assertIn("no model", self.refused("plan", "--machine", "h100"))

    def test_are_refused_beside_what_is_of_one_machine(self):
        for flags in (["--machine", "h100"], ["--auto"], ["--explain"], ["--check"],
                      ["--ranks", 2]):
            self.assertIn("--machines", self.refused("plan", "--machines", *flags))


class Table(ProgramTestCase):
    def setUp(self):
        super().setUp()
        os.environ["SPILLWAY_DEVICE"] = "cuda"

    def test_has_each_machine_and_says_the_same_twice(self):
        table = self.succeed("plan", "--machines", *SMALL, "--json").stdout
        self.assertEqual(self.succeed("plan", "--machines", *SMALL, "--json").stdout, table)
        rows = json.loads(table)["machines"]
        described = {file.stem for file in MACHINES.glob("*.json")
                     if "drives" in json.loads(file.read_text())}
        for stem in described:
            self.assertTrue(any(row["name"].startswith(f"{stem}-") for row in rows), stem)
        text = self.succeed("plan", "--machines", *SMALL).stdout.splitlines()
        self.assertEqual([line.split()[0] for line in text[1:]], [row["name"] for row in rows])
        # A row is the plan of that machine.
        for row in rows[::17]:
            plan = self.document("plan", "--machine", row["name"], *SMALL)
            self.assertEqual(row["tokens_per_second"], plan["speed"]["tokens_per_second"])
            self.assertEqual(row["bounding_lane"], plan["bounding_lane"])
            self.assertEqual(row["taken"]["host"], plan["memory"]["host"]["bytes"])

    def test_says_where_a_model_does_not_fit_and_why(self):
        rows = self.document("plan", "--machines", "--model", "llama-3-70b",
                             "--host-memory", "100GB")["machines"]
        for row in rows:
            self.assertIsNone(row["model"])
            self.assertIn("host memory needs at least", row["refusal"])
        text = self.succeed("plan", "--machines", "--model", "llama-3-70b", "--host-memory",
                            "100GB").stdout
        self.assertEqual(text.count("none fits"), len(rows))

    def test_is_that_of_the_page(self):
        done = subprocess.run([sys.executable, "-B", ROOT / "tools/machine-table", "--check",
                               "--spillway", PROGRAM], capture_output=True, text=True, check=False)
        self.assertEqual(done.stderr, "")
        self.assertEqual(done.returncode, 0)
        # What fits is the largest: the next larger model is refused there.
        larger = {"gpt2-xl": "llama-2-7b", "qwen2.5-14b": "qwen3-32b", "qwen2.5-32b": "llama-3-70b"}
        page = (ROOT / "docs/machines.md").read_text(encoding="utf-8")
        rows = [[cell.strip(" `") for cell in line.split("|")] for line in page.splitlines()
                if line.startswith("| `") and line.count("|") == 7]
        self.assertEqual(len(rows), 34)
        for _, name, *_, model, _, _, _ in rows[::11]:
            self.refused("plan", "--machine", f"{name}-1ssd", "--model", larger[model], code=3)


if __name__ == "__main__":
    main()
