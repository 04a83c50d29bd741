"""Input files that are none, and names in files that a terminal would obey.
usage: inputs_test.py PROGRAM"""
import json
import os
import shutil
import socket
import struct
import subprocess
import sys

from program_test_case import ROOT, SECONDS, ProgramTestCase, main

HELPER = ROOT / "tools" / "python" / "spillway_tokenize.py"


class NoRegularFile(ProgramTestCase):
    """Whoever opened a pipe without care would wait for its writer for ever."""

    def refused(self, done, kind="a pipe"):
        self.assertIn(done.returncode, (1, 2), done.stderr)
        self.assertIn(kind, done.stderr)
        self.assertIn("regular file", done.stderr)

    def pipe(self, name):
        path = self.folder / name
        path.unlink(missing_ok=True)
        os.mkfifo(path)

    def test_is_refused_as_any_input_of_any_command(self):
        for name in ("pipe.json", "pipe.safetensors", "pipe.txt"):
            self.pipe(name)
        model = ("--model", "model.json")
        for arguments in (["info", "pipe.safetensors"],
                          ["plan", "pipe.json", *model],
                          ["plan", "train.json", "--model", "pipe.json"],
                          ["plan", "train.json", *model, "--machine", "pipe.json"],
                          ["data", "pipe.txt", "--out", "d", "--tokenizer", "bytes"],
                          ["data", "pipe.txt", "--out", "e", "--tokenizer", "chars"]):
            with self.subTest(arguments=arguments):
                self.refused(self.run_program(*arguments))

    def test_is_refused_in_a_data_directory(self):
        for name in ("meta.json", "train.bin", "val.bin"):
            with self.subTest(name=name):
                shutil.rmtree(self.folder / "copy", ignore_errors=True)
                shutil.copytree(self.folder / "data", self.folder / "copy")
                self.pipe(f"copy/{name}")
                arguments = self.train("run", 1)
                arguments[arguments.index("data")] = "copy"
                self.refused(self.run_program(*arguments))

    def test_is_refused_in_a_run_and_in_a_checkpoint(self):
        self.succeed(*self.train("run", 2))
        self.succeed("export", "run", "hf")
        for name in ("config.json", "manifest.json"):
            with self.subTest(name=name):
                shutil.rmtree(self.folder / "copy", ignore_errors=True)
                shutil.copytree(self.folder / "run", self.folder / "copy")
                self.pipe(f"copy/{name}")
                self.refused(self.run_program("info", "copy"))
        for name in ("config.json", "model.safetensors"):
            with self.subTest(name=name):
                shutil.rmtree(self.folder / "copy", ignore_errors=True)
                shutil.copytree(self.folder / "hf", self.folder / "copy")
                self.pipe(f"copy/{name}")
                self.refused(self.run_program("eval", "--model", "copy", "--data", "data"))

    def test_is_refused_by_what_it_is(self):
        (self.folder / "folder.json").mkdir()
        self.refused(self.run_program("plan", "folder.json", "--model", "model.json"),
                     "a directory")
        self.refused(self.run_program("plan", "/dev/zero", "--model", "model.json"), "a device")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.folder / "socket.json"))
            done = self.run_program("plan", "socket.json", "--model", "model.json")
        self.assertNotEqual(done.returncode, 0)

    def test_is_refused_by_the_tokenizer_helper(self):
        self.pipe("pipe.txt")
        (self.folder / "hf").mkdir()
        self.pipe("hf/tokenizer.json")
        for arguments in (["hf", "text.txt", "--out", "out"], ["hf", "pipe.txt", "--out", "out"]):
            done = subprocess.run([sys.executable, HELPER, *arguments], cwd=self.folder,
                                  check=False, capture_output=True, text=True, timeout=SECONDS)
            self.assertEqual(done.returncode, 2, done.stderr)


def safetensors(names) -> bytes:
    header = {name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]}
              for i, name in enumerate(names)}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(4 * len(header))


class InfoOfAFile(ProgramTestCase):
    def test_prints_no_name_that_a_terminal_obeys(self):
        names = ["red\x1b[31m", "two\nlines", "del\x7f", "c1\x9b2J", "turn\u202eed", "plain é"]
        (self.folder / "names.safetensors").write_bytes(safetensors(names))
        done = self.succeed("info", "names.safetensors")
        for one in done.stdout:
            self.assertTrue(one == "\n" or (" " <= one and one not in "\x7f\x9b\u202e"), repr(one))
        for shown in ("red\\u001b[31m", "two\\nlines", "del\\u007f", "c1\\u009b2J",
                      "turn\\u202eed", "plain é"):
            self.assertIn(shown, done.stdout)
        document = json.loads(self.run_program("info", "names.safetensors", "--json").stdout)
        self.assertEqual(sorted(document["tensors"]), sorted(names))

    def test_takes_no_time_that_grows_with_the_square_of_the_tensors(self):
        # With a search through all names for each one this ends beyond the time limit.
        names = [f"model.layers.{i}.mlp.experts.weight" for i in range(300_000)]
        (self.folder / "many.safetensors").write_bytes(safetensors(names))
        done = self.run_program("info", "many.safetensors", "--json")
        self.assertEqual(len(json.loads(done.stdout)["tensors"]), len(names))

    def test_errors_print_nothing_that_a_terminal_obeys(self):
        done = self.run_program("info", "no\x1b[31m\u009b2J")
        self.assertEqual(done.returncode, 2)
        self.assertNotIn("\x1b", done.stderr)
        self.assertNotIn("\u009b", done.stderr)


if __name__ == "__main__":
    main()
