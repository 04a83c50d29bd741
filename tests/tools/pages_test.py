"""`plan --html`, `report` and `report --html`: what they say of a run, and the page in a browser.
usage: pages_test.py PROGRAM"""
import re
import shutil
import signal
import subprocess

from program_test_case import MACHINES, SECONDS, ProgramTestCase, main

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


class Pages(ProgramTestCase):
    def page(self, name) -> str:
        return (self.folder / name).read_text(encoding="utf-8")

    def drawn(self, name, width=1180) -> str:
        """Returns the page's elements once its script has run in a browser without a network."""
        if BROWSER is None:
            self.skipTest("no Chromium: apt-get install chromium")
        done = subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             f"--user-data-dir={self.folder / 'browser'}", f"--window-size={width},1200",
             "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--dump-dom",
             f"file://{self.folder / name}"], capture_output=True, text=True, timeout=SECONDS)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotRegex(done.stderr, "CONSOLE.*(Error|error)")
        return done.stdout

    def train_run(self):
        self.configure(eval_every=3)
        trained = self.document(*self.train("run", 8, "--device-memory", "2MiB"))
        self.assertEqual(trained["last_step"], 8)
        return trained

    def test_of_a_plan_needs_nothing_else_and_draws(self):
        self.write("large.json", {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
                                  "spillway": {"context": 4096}})
        planned = self.document("plan", "large.json", "--model", "llama-3-8b", "--profile", "",
                                "--machine", MACHINES / "h100.json", "--html", "plan.html")
        page = self.page("plan.html")
        # No address is left but the name of SVG's elements.
        self.assertEqual(set(re.findall(r"https?://[^\s\"'<]+", page)),
                         {"http://www.w3.org/2000/svg"})
        self.assertNotRegex(page, r"<(link|img|iframe)|\ssrc=|@import|url\(")
        for width in (400, 1180):
            dom = self.drawn("plan.html", width)
            # A timeline, and a chart for each tier that is used.
            charts = int(re.search(r'data-drawn="(\d+)"', dom)[1])
            self.assertEqual(charts, 1 + sum(tier["bytes"] > 0
                                             for tier in planned["memory"].values()))
            for section in ("What bounds it", "Twice of one thing", "device memory",
                            "What was chosen, and the next best"):
                self.assertIn(section, dom)

    def test_of_a_run_shows_what_it_was_planned_to_be_and_what_it_was(self):
        trained = self.train_run()
        text = self.succeed("report", "run", "--html", "report.html").stdout
        report = self.document("report", "run")
        metrics = self.metrics("run")
        history = report["history"]
        self.assertEqual(history["step"], list(range(1, 9)))
        self.assertEqual(history["loss"], [line["loss"] for line in metrics])
        self.assertEqual(history["grad_norm"], [line["grad_norm"] for line in metrics])
        self.assertEqual(history["validation"],
                         [[line["step"], line["val_loss"]] for line in metrics
                          if "val_loss" in line])
        self.assertEqual(report["plan"]["memory"], trained["plan"]["memory"])
        self.assertEqual(report["run"]["last_step"], 8)
        self.assertIn(f"loss       {metrics[0]['loss']:.4f} at first", text)
        # The trace has as many forward passes a step as the plan.
        self.assertEqual(report["measured"]["kinds"]["forward"]["ops"],
                         report["picture"]["kinds"]["forward"]["ops"])
        dom = self.drawn("report.html")
        # Two timelines, the tiers in use, and four curves.
        tiers = len(report["picture"]["memory"])
        self.assertEqual(int(re.search(r'data-drawn="(\d+)"', dom)[1]), 2 + tiers + 4)
        self.assertIn("Predicted and measured", dom)

    def test_of_a_run_of_an_earlier_version_lacks_what_that_has_not_kept(self):
        self.train_run()
        (self.folder / "run" / "plan.json").unlink()
        (self.folder / "run" / "trace.json").unlink()
        report = self.document("report", "run", "--html", "report.html")
        self.assertIsNone(report["plan"])
        self.assertIsNone(report["measured"])
        self.assertEqual(int(re.search(r'data-drawn="(\d+)"', self.drawn("report.html"))[1]), 4)

    def test_of_a_run_with_damaged_files_is_refused_by_name(self):
        self.assertIn("nowhere has no run", self.refused("report", "nowhere"))
        self.train_run()
        for name, content in (("plan.json", "{"), ("trace.json", "[]")):
            kept = (self.folder / "run" / name).read_bytes()
            self.write(f"run/{name}", content)
            self.assertIn(name, self.refused("report", "run", code=1))
            (self.folder / "run" / name).write_bytes(kept)
        kept = (self.folder / "run" / "plan.json").read_text()
        picture = {"step_seconds": 1, "kinds": {"forward": {}}}
        for document in ({"format": 1}, {"format": "1"}, {"format": 1, "plan": {}, "picture": {}},
                         {"format": 1, "plan": {}, "picture": {"step_seconds": None}},
                         {"format": 1, "plan": {}, "picture": picture}):
            self.write("run/plan.json", document)
            self.assertRegex(self.refused("report", "run", code=1), "plan.json .*start the run")
        self.write("run/plan.json", {"format": 99, "plan": {}, "picture": {}})
        self.assertIn("another version", self.refused("report", "run"))
        # Lines that are torn or damaged are passed over, as by a run that goes on.
        self.write("run/plan.json", kept)
        with open(self.folder / "run" / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write('{"step": "9"}\n{"step": 9, "lo')
        self.assertEqual(self.document("report", "run")["run"]["last_step"], 8)

    def test_a_page_that_cannot_be_written_is_an_error(self):
        self.train_run()
        self.assertIn("nowhere", self.refused("report", "run", "--html", "nowhere/page.html",
                                              code=1))

    def test_a_plan_that_cannot_be_kept_ends_no_run(self):
        child = self.start(*self.train("run", 100000), stderr=subprocess.PIPE)
        self.wait_for_steps(child, "run", 2)
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=SECONDS)
        plan = self.folder / "run" / "plan.json"
        plan.unlink()
        plan.mkdir()  # a file cannot take its place
        done = self.succeed(*self.train("run", len(self.metrics("run")) + 2, "--resume"))
        self.assertIn("the plan is not kept", done.stderr)

    def test_each_start_keeps_its_own_plan(self):
        self.train_run()
        before = self.document("report", "run")["plan"]
        self.succeed(*self.train("run", 10, "--resume", "--device-memory", "3MiB"))
        after = self.document("report", "run")["plan"]
        self.assertNotEqual(before["memory"]["device"]["budget"],
                            after["memory"]["device"]["budget"])


if __name__ == "__main__":
    main()
