"""What cannot be written: an answer is a failure, progress ends nothing, and the commands go on.
usage: output_test.py PROGRAM"""
import json
import os
import signal
import subprocess
import time

from program_test_case import SECONDS, ProgramTestCase, main


class Output(ProgramTestCase):
    def expect_trained(self, done, run, steps):
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.metrics(run)), steps)
        info = json.loads(self.run_program("info", run, "--json").stdout)
        self.assertEqual(info["step"], steps)

    def test_a_full_disk_behind_stderr_ends_no_run(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            self.expect_trained(self.run_program(*self.train("run", 5), stderr=full), "run", 5)

    def test_a_reader_of_stderr_that_has_gone_ends_no_run(self):
        reader, writer = os.pipe()
        os.close(reader)
        done = self.run_program(*self.train("run", 5), stderr=writer)
        os.close(writer)
        self.expect_trained(done, "run", 5)

    def test_a_closed_stderr_ends_no_run(self):
        done = self.run_program(*self.train("run", 5), preexec_fn=lambda: os.close(2))
        self.expect_trained(done, "run", 5)

    def test_no_file_of_a_run_becomes_a_standard_stream(self):
        child = self.start(*self.train("run", 100000), preexec_fn=lambda: os.closerange(0, 3))
        self.wait_for_steps(child, "run", 2)
        streams = [os.readlink(f"/proc/{child.pid}/fd/{number}") for number in range(3)]
        self.assertEqual(streams, ["/dev/null"] * 3)
        child.send_signal(signal.SIGTERM)
        self.assertEqual(child.wait(SECONDS), 1)  # its report had nowhere to go
        step = json.loads(self.run_program("info", "run", "--json").stdout)["step"]
        self.assertEqual(step, len(self.metrics("run")))

    def test_an_answer_that_cannot_be_written_is_a_failure_with_its_cause(self):
        for arguments in (["--help"], ["train", "--help"], ["--version"], ["info", "data"],
                          ["info", "data", "--json"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = self.run_program(*arguments, stdout=full)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertIn("No space left on device", done.stderr, arguments)
        done = self.run_program("info", "data", preexec_fn=lambda: os.close(1), stdout=None)
        self.assertEqual(done.returncode, 1)
        self.assertIn("standard output", done.stderr)

    def test_a_report_that_cannot_be_written_loses_no_step(self):
        for mode in ([], ["--json"]):
            run = "run" + "".join(mode)
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = self.run_program(*self.train(run, 4, *mode), stdout=full)
            self.assertEqual(done.returncode, 1)
            self.assertIn("No space left on device", done.stderr)
            self.assertEqual(len(self.metrics(run)), 4)

    def test_an_interrupt_and_a_terminal_that_hangs_up_save_the_run(self):
        for number, times in ((signal.SIGINT, 1), (signal.SIGHUP, 1), (signal.SIGHUP, 2)):
            run = f"run{number}-{times}"
            child = self.start(*self.train(run, 100000, "--json"), stdout=subprocess.PIPE)
            self.wait_for_steps(child, run, 3)
            for _ in range(times):
                child.send_signal(number)
            out, _ = child.communicate(timeout=SECONDS)
            self.assertEqual(child.returncode, 0)
            report = json.loads(out)
            self.assertTrue(report["interrupted"])
            self.assertEqual(report["last_step"], len(self.metrics(run)))
            self.assertEqual(report["last_step"], self.document("info", run)["step"])

    def test_a_second_hang_up_later_ends_the_process(self):
        config = json.loads((self.folder / "train.json").read_text())
        config["spillway"]["eval_every"] = 1
        self.write("train.json", config)
        os.truncate(self.write("data/val.bin", ""), 100_000_000)  # minutes of evaluation
        child = self.start(*self.train("run", 100), stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE)
        self.addCleanup(child.stderr.close)
        self.wait_for_steps(child, "run", 1)
        child.send_signal(signal.SIGHUP)
        said = b""
        while b"again to stop now" not in said:
            more = os.read(child.stderr.fileno(), 4096)
            self.assertTrue(more, said)  # none: the process has ended
            said += more
        child.send_signal(signal.SIGHUP)  # of the same terminal
        time.sleep(2.5)  # longer than the hang-ups of one terminal that closes
        self.assertIsNone(child.poll())
        child.send_signal(signal.SIGHUP)
        self.assertEqual(child.wait(SECONDS), -signal.SIGHUP)

    def test_a_trace_that_cannot_be_written_is_told_and_fails_no_run(self):
        (self.folder / "run").mkdir()
        self.expect_trained(self.run_program(*self.train("run", 2)), "run", 2)
        trace = self.folder / "run" / "trace.json"
        trace.unlink()
        trace.mkdir()
        done = self.run_program(*self.train("run", 5, "--resume"))
        self.expect_trained(done, "run", 5)
        self.assertRegex(done.stderr, r"the trace is not written: .*trace\.json.*Is a directory")
        self.assertEqual(list((self.folder / "run").glob(".*")), [])

    def test_nohup_is_obeyed(self):
        child = self.start(*self.train("run", 60, "--json"), stdout=subprocess.PIPE,
                           preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.wait_for_steps(child, "run", 2)
        child.send_signal(signal.SIGHUP)
        out, _ = child.communicate(timeout=SECONDS)
        self.assertEqual((child.returncode, json.loads(out)["last_step"]), (0, 60))


if __name__ == "__main__":
    main()
