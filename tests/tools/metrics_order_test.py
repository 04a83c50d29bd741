"""The lines of metrics.jsonl are on the disk before the commits that they describe, as strace sees
the system calls. Exit code 77: strace cannot trace here. usage: metrics_order_test.py PROGRAM"""
import os
import re
import shutil
import subprocess
import sys

from program_test_case import ProgramTestCase, main

NEEDLESS = 77
CALL = re.compile(r"(\d+) +(\w+)\(\d+<([^>]*)>(.*)")
RESUMED = re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)")
# What the record of a commit begins with: magic, version and 1, where that of a new store has 0.
RECORD = r"SWAYCOMM\3\0\0\0\1"  # nvme_swap/format.hpp


def may_trace() -> bool:
    return shutil.which("strace") is not None and subprocess.run(
        ["strace", "-o", os.devnull, "true"], stderr=subprocess.DEVNULL, check=False
    ).returncode == 0


def calls_of(log):
    """(call, file's name, what follows, has begun, has ended) in the order of the trace."""
    pending = {}
    for line in log.read_text().splitlines():
        if match := CALL.match(line):
            thread, call, path, rest = match.groups()
            name, unfinished = os.path.basename(path), "<unfinished" in rest
            if unfinished:
                pending[thread] = (call, name, rest)
            yield call, name, rest, True, not unfinished
        elif match := RESUMED.match(line):
            thread, rest = match.groups()
            if thread in pending:
                call, name, begin = pending.pop(thread)
                yield call, name, begin + rest, False, True


class Order(ProgramTestCase):
    def traced(self, run, *more):
        log = self.folder / f"{run}.log"
        strace = ["strace", "-f", "-y", "-qq", "-o", log, "-e", "trace=pwrite64,fdatasync", "-e",
                  "signal=none"]
        self.succeed(*self.train(run, 7, *more), before=strace)
        return log

    def expect_lines_before_records(self, log):
        lines = records = 0
        durable = True
        for call, name, rest, begun, ended in calls_of(log):
            if name == "metrics.jsonl" and call == "pwrite64":
                lines += begun
                durable = False
            elif name == "metrics.jsonl" and ended and rest.endswith(" = 0"):
                durable = True
            elif call == "pwrite64" and begun and f'"{RECORD}' in rest:
                self.assertTrue(durable, f"record {records + 1} is written over {lines} lines, the "
                                "last of which may still be lost")
                records += 1
        return lines, records

    def test_where_each_step_commits_where_one_is_evaluated_and_where_one_is_kept(self):
        self.configure(io_engine="posix", eval_every=2, save_every=3, keep=2)
        self.drive("disk")
        lines, records = self.expect_lines_before_records(self.traced("run", "--nvme", "disk"))
        self.assertEqual(lines, 7 + 4)  # evaluated after steps 2, 4, 6 and 7
        self.assertGreaterEqual(records, 7)

    def test_where_some_steps_commit(self):
        self.configure(io_engine="posix", commit_every=3)
        _, records = self.expect_lines_before_records(self.traced("run"))
        self.assertGreaterEqual(records, 3)


if __name__ == "__main__":
    if not may_trace():
        print("SKIPPED: strace cannot trace here")
        sys.exit(NEEDLESS)
    main()
