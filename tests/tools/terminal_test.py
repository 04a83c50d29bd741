"""What a user sees of `spillway train` in terminals of 40, 80 and 200 columns.
usage: terminal_test.py PROGRAM"""
import json
import re
import time

from program_test_case import PROGRAM, SECONDS, ProgramTestCase, main
from screen import Terminal

WIDTHS = (40, 80, 200)


class LiveLine(ProgramTestCase):
    def terminal(self, columns, *arguments, **environment) -> Terminal:
        terminal = Terminal([PROGRAM, *map(str, arguments)], columns, self.folder, **environment)
        self.addCleanup(terminal.close)
        return terminal

    def live_rows(self, rows) -> list:
        return [row for row in rows if row.startswith("step ") and re.match(r"step \d+/\d+", row)]

    def test_never_wraps_and_shows_what_matters_most(self):
        shown = {}
        for columns in WIDTHS:
            terminal = self.terminal(columns, *self.train(f"run{columns}", 300))
            self.assertEqual(terminal.finish(SECONDS), 0, terminal.text)
            self.assertEqual(self.live_rows(terminal.screen.wrapped), [])
            self.assertNotIn("", terminal.screen.rows[:-1])  # the line is ended once
            frames = self.live_rows(terminal.screen.frames)
            self.assertGreater(len(frames), 0, terminal.text)
            self.assertTrue(frames[-1].startswith("step 300/300 "), frames[-1])
            self.assertLess(max(map(len, frames)), columns)
            shown[columns] = frames[-1]
        for word in ("loss ", "left "):
            self.assertIn(word, shown[40])
        self.assertIn("tokens/s", shown[80])
        for word in ("[====", "% of plan", "device ", " of ", "host ", "tokens/s"):
            self.assertIn(word, shown[200])

    def test_follows_a_terminal_that_is_made_narrower(self):
        terminal = self.terminal(200, *self.train("run", 100000))
        frames = terminal.screen.frames
        terminal.read_until(lambda: len(self.live_rows(frames)) > 2, SECONDS)
        terminal.resize(40)
        before = len(frames)
        terminal.read_until(lambda: len(frames) > before + 4, SECONDS)
        self.assertGreater(len(frames[before]), 40)
        for frame in frames[before + 1:]:
            self.assertLess(len(frame), 40)
        terminal.type(b"\x03")
        self.assertEqual(terminal.finish(SECONDS), 0)

    def test_leaves_nothing_of_a_line_that_a_narrower_terminal_has_broken(self):
        for reflows, environment in ((True, {}), (False, {"XTERM_VERSION": "XTerm(379)"})):
            terminal = self.terminal(200, *self.train(f"run{reflows}", 100000), **environment)
            frames = terminal.screen.frames
            terminal.read_until(lambda f=frames: len(self.live_rows(f)) > 2, SECONDS)
            said = terminal.screen.rows[:-1]
            for columns in (40, 200, 17, 120, 60):
                terminal.resize(columns, reflows)
                before = len(frames)
                terminal.read_until(lambda f=frames, b=before: len(f) > b + 2, SECONDS)
                *above, live = terminal.screen.rows
                self.assertTrue(live.startswith("step "), live)
                self.assertLess(len(live), columns)
                if reflows:
                    self.assertEqual("".join(above), "".join(said))
                else:
                    self.assertEqual([row[:17] for row in above], [row[:17] for row in said])
            terminal.type(b"\x03")
            self.assertEqual(terminal.finish(SECONDS), 0)

    def test_a_terminal_that_does_not_say_its_width_has_80_columns(self):
        begin = time.monotonic()
        terminal = self.terminal(80, *self.train("run", 100000))
        frames = terminal.screen.frames
        terminal.read_until(lambda: len(self.live_rows(frames)) > 2, SECONDS)
        for columns in (0, 80) * 30:
            terminal.set_size(terminal.descriptor, columns)
            terminal.read(0.02)
        # Ten lines a second; a change of width would show one at once.
        seconds = time.monotonic() - begin
        self.assertLess(len(self.live_rows(frames)), 10 * seconds + 3)

    def test_an_interrupt_is_answered_at_once(self):
        for columns in WIDTHS:
            terminal = self.terminal(columns, *self.train(f"run{columns}", 100000))
            terminal.read_until(lambda t=terminal: self.live_rows(t.screen.frames), SECONDS)
            terminal.type(b"\x03")
            self.assertEqual(terminal.finish(SECONDS), 0, terminal.text)
            said = " ".join(re.sub(r"\x1b\[\d*K", " ", terminal.text).split())
            answer = re.search(r"finishing step (\d+), then saving; again to stop now", said)
            self.assertIsNotNone(answer, terminal.text)
            # It names the step that ran; the handler may have come between two.
            steps = len(self.metrics(f"run{columns}"))
            self.assertIn(int(answer.group(1)), (steps, steps + 1))
            self.assertIn(f"to step {steps} (interrupted, saved)", said)
            self.assertFalse([row for row in terminal.screen.wrapped if "finishing" in row])

    def test_a_second_interrupt_ends_the_process(self):
        slow = json.loads((self.folder / "train.json").read_text())
        slow["gradient_accumulation_steps"] = 2000  # a step of seconds
        slow["spillway"]["device_memory"] = "256MiB"
        self.write("train.json", slow)
        terminal = self.terminal(80, *self.train("run", 100000))
        terminal.read_until(lambda: "predicted " in terminal.text, SECONDS)
        terminal.type(b"\x03")
        terminal.read_until(lambda: "again to stop now" in terminal.text, SECONDS)
        terminal.type(b"\x03")
        self.assertEqual(terminal.finish(SECONDS), -2, terminal.text)


class LongText(ProgramTestCase):
    def test_is_wrapped_at_words(self):
        plan = ("plan", "train.json", "--model", "model.json")
        for arguments, code in ((("plan", "--help"), 0), ((), 2), ((*plan, "-v", "--explain"), 0),
                                ((*plan, "--device-memory", "64KiB"), 3)):
            plain = self.run_program(*arguments)
            told = plain.stderr + plain.stdout
            for columns in (*WIDTHS, 20, 300):
                terminal = Terminal([PROGRAM, *arguments], columns, self.folder)
                self.addCleanup(terminal.close)
                self.assertEqual(terminal.finish(SECONDS), code, terminal.text)
                lines = re.sub(r"\x1b\[\d*K", "", terminal.text).splitlines()
                width = min(max(columns, 40), 200)
                for line in lines:  # one word may be longer
                    self.assertTrue(len(line) <= width or " " not in line.strip(), line)
                if columns == 200 or "model.json" not in arguments:
                    self.assertGreater(len(lines), len(told.splitlines()) - 1)
                if "model.json" not in arguments:  # rates are measured anew
                    self.assertEqual(terminal.text.split(), told.split())
            # What is no terminal gets whole lines.
            self.assertGreater(max(map(len, told.splitlines())), 80, arguments)


class WhatIsSaid(ProgramTestCase):
    def test_of_a_run_on_the_cpu_names_no_gpu_and_one_rate(self):
        plan = self.succeed("plan", "train.json", "--model", "model.json", "-v")
        short = self.succeed("plan", "train.json", "--model", "model.json").stdout
        done = self.succeed(*self.train("run", 20))
        for said in (plan.stdout, short, done.stdout, done.stderr):
            self.assertNotRegex(said, r"(?i)\bgpu\b")
            self.assertNotIn("tok/s", said)
        self.assertIn("compute on the CPU", plan.stdout)
        self.assertRegex(plan.stdout, r"(?m)^lanes +busy s +exposed s\n           device +\d")
        for said in (plan.stdout, short, done.stdout):
            self.assertRegex(said, r"predicted .* \d+ tokens/s, bounded by \w+")
        long = self.succeed(*self.train("long", 1), "--verbose").stdout
        self.assertIn("\nlanes ", long)
        self.assertNotIn("\nlanes ", done.stdout)
        self.assertRegex(done.stdout, r"(?s)^fits .*\npredicted .*\ncommits +every \d+ step")
        # The last live line and the report are of the same steps.
        live = re.findall(r"step 20/20 .* (\S+) tokens/s", done.stderr)
        report = re.findall(r"measured .*, (\S+) tokens/s", done.stdout)
        self.assertEqual(live, report)
        # Documents and metrics keep the names that their format states.
        self.assertIn("gpu", self.metrics("run")[0]["exposed"])

    def test_of_a_finished_run_that_is_resumed(self):
        self.succeed(*self.train("run", 5))
        trace = (self.folder / "run" / "trace.json").read_bytes()
        self.assertGreater(len(json.loads(trace)["traceEvents"]), 10)
        done = self.succeed(*self.train("run", 5, "--resume"))
        self.assertIn("trained    no step: the run is at step 5, its last", done.stdout)
        self.assertNotRegex(done.stdout + done.stderr, r"loss \d")
        self.assertNotRegex(done.stdout, r"\d{6} TiB")
        self.assertEqual((self.folder / "run" / "trace.json").read_bytes(), trace)
        answer = self.run_program(*self.train("run", 5, "--resume", "--json"))
        report = json.loads(answer.stdout)
        self.assertEqual((report["steps"], report["last_step"], report["loss"]), (0, 5, None))


if __name__ == "__main__":
    main()
