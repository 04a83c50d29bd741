"""Words that nothing takes, names of the hub, and what a refusal advises.
usage: commands_test.py PROGRAM"""
import glob
import json
import os
import re
import unittest

from program_test_case import CONFIG, ROOT, ProgramTestCase, main


class Words(ProgramTestCase):
    def refused(self, *arguments, **options) -> str:
        done = self.run_program(*arguments, **options)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        return done.stderr

    def test_every_command_explains_itself(self):
        for command in ("data", "plan", "train", "eval", "generate", "export", "info"):
            self.assertIn("--json", self.succeed(command, "--help").stdout)

    def test_the_bare_program_says_where_to_start(self):
        done = self.run_program()
        self.assertEqual((done.returncode, done.stderr), (2, ""))
        self.assertTrue(done.stdout.startswith(self.succeed("--help").stdout))
        start = done.stdout.split("Where to start:\n")[1]
        commands = [line.split("  ")[1].split() for line in start.splitlines()]
        self.assertGreater(len(commands), 2)
        for program, *arguments in commands:
            self.assertEqual(program, "spillway")
            self.succeed(*arguments, *(["--model", "gpt2"] if "--machines" in arguments else []))

    def test_notes_that_change_nothing_are_one_line_and_none_is_told_before_an_error(self):
        given = json.loads((self.folder / "train.json").read_text())
        given |= {"wall_clock_breakdown": True, "steps_per_print": 10,
                  "zero_optimization": {"stage": 2, "overlap_comm": True}}
        del given["optimizer"]
        self.write("train.json", given)
        for command in (["plan", "train.json", "--model", "model.json"], self.train("run", 1)):
            long = self.run_program(*command, "-v")
            self.assertEqual(long.returncode, 0, long.stderr)
            notes = [line for line in long.stderr.splitlines() if line.startswith("note: ")]
            unused = sum(": not needed" in note for note in notes)
            chosen = [note for note in notes if ": absent" in note]
            self.assertGreater(unused, 1)
            self.assertGreater(len(chosen), 1)
            if command[0] == "train":
                command[command.index("run")] = "again"
            short = self.succeed(*command).stderr
            self.assertIn(f"note: {unused} keys of the configuration are not needed; "
                          "-v lists them\n", short)
            self.assertNotIn(": not needed", short)
            for note in chosen:
                self.assertIn(note, short)
            if command[0] == "train":
                command[command.index("again")] = "third"
            self.assertNotIn("note: ", self.run_program(*command, "--device-memory", "1KiB").stderr)

    def test_a_file_that_is_not_there_is_said_before_anything_else(self):
        for command in (["plan"], self.train("run", 1)[:1] + ["--data", "data", "--run", "run"]):
            said = self.refused_at_all(*command, "none.json", "--model", "nobody", "--device",
                                       "gpu")
            self.assertIn("none.json", said)
            self.assertNotIn("nobody", said)

    def refused_at_all(self, *arguments) -> str:
        done = self.run_program(*arguments)
        self.assertNotEqual(done.returncode, 0)
        return done.stderr

    def test_a_mistyped_command_or_flag_names_the_nearest(self):
        for wrong, right in (("trian", "train"), ("evall", "eval"), ("genrate", "generate"),
                             ("exprot", "export"), ("fcsk", "fsck"), ("benhc", "bench")):
            said = self.refused(wrong, "train.json", "--model", "model.json")
            self.assertIn(f'no command "{wrong}"; did you mean "{right}"?', said)
        self.assertIn('did you mean "adam"?', self.refused("bench", "adma"))
        for wrong, right in (("--step", "--steps"), ("--host-memroy=1GB", "--host-memory")):
            said = self.refused("plan", "train.json", "--model", "model.json", wrong, "3")
            self.assertIn(f'did you mean "{right}"?', said)

    def test_flags_of_options_are_explained_as_in_the_table_of_options(self):
        table = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
        for command in ("train", "plan"):
            told = self.run_program(command, "--help").stdout
            for key in ("steps", "seed", "device", "device_memory", "host_memory", "nvme",
                        "threads", "compute_threads", "isa"):
                row = table[table.index("## `spillway`"):].split(f"\n| `{key}` | ")[1]
                values, standard, _, meaning = row.split(" |\n")[0].split(" | ")
                values = values.replace("an array of paths", "")
                line = next(line for line in told.splitlines() if f"key spillway.{key})" in line)
                self.assertIn(f"{meaning} (", line)
                self.assertIn(f"; default {standard}; ", line)
                self.assertIn(values.split(" or ")[0], line)

    def test_flags_of_options_are_checked_as_in_a_configuration(self):
        for flag, value, told in (
                ("--steps", "4294967296", "a whole number from 0 to 4294967295"),
                ("--compute-threads", "2147483648", "a whole number from 0 to 2147483647"),
                ("--device", "gpu", "one of host, cuda"), ("--isa", "sse", "one of scalar, "),
                ("--host-memory", "lots", 'a size such as "512MiB"'), ("--nvme", "", "a path")):
            said = self.refused("plan", "train.json", "--model", "model.json", flag, value)
            self.assertIn(f"{flag}: spillway.{flag[2:].replace('-', '_')} ", said)
            self.assertIn(value, said)
            self.assertIn(f"; write {told}", said)

    def test_numbers_that_fit_nothing_are_refused_before_a_run_is_made(self):
        train = self.train("run", 2)[:-2]
        for flag, value in (("--seed", "-1"), ("--seed", "18446744073709551616"),
                            ("--steps", "4294967296"), ("--threads", "-3")):
            self.assertIn(value, self.refused(*train, flag, value))
            self.assertFalse(self.path("run").exists())

    def test_a_word_that_is_near_to_nothing_is_answered_with_what_there_is(self):
        said = self.refused("metamorphosis")
        self.assertNotIn("did you mean", said)
        for command in ("train", "plan", "export"):
            self.assertIn(command, said)

    def test_a_usage_error_is_a_json_document_where_one_is_asked_for(self):
        wrong = (["trian", "--json"], ["export", "--json"], ["info", "--json"],
                 ["plan", "train.json", "--json", "--stpes"], ["info", "data", "more", "--json"],
                 ["plan", "train.json", "--seed", "-1", "--json"], ["bench", "adma", "--json"],
                 ["generate", "--json", "--tokens"])
        for arguments in wrong:
            with self.subTest(arguments=arguments):
                done = self.run_program(*arguments)
                error = json.loads(done.stdout)["error"]
                self.assertEqual((done.returncode, error["exit"]), (2, 2))
                self.assertEqual(error["code"], "invalid_argument")
                self.assertEqual(error["message"], done.stderr.strip("\n"))
        for arguments in (["info"], ["train"], ["info", "data", "--", "--json"]):
            self.refused(*arguments)
        self.assertIn("Usage", self.run_program("plan", "--help", "--json").stdout)

    def test_a_mistyped_option_names_the_nearest_in_a_document_too(self):
        self.write("train.json", '{"gradient_cliping": 1.0}')
        done = self.run_program(*self.train("run", 1, "--json"))
        self.assertEqual((done.returncode, json.loads(done.stdout)["error"]["exit"]), (2, 2))
        self.assertIn("gradient_clipping", done.stderr)

    def test_only_what_needs_a_temporary_directory_asks_for_one(self):
        environment = os.environ | {"TMPDIR": "/none"}
        self.succeed("--version", env=environment)
        self.succeed(*self.train("run", 1), env=environment)
        for command in (["info", "run"], ["fsck", "run"], ["export", "run", "out"],
                        ["eval", "--run", "run", "--data", "data"],
                        ["generate", "--run", "run", "--tokens", 1],
                        ["plan", "train.json", "--model", "model.json"]):
            self.succeed(*command, env=environment)
        self.assertIn("TMPDIR names no directory",
                      self.refused("bench", "step", "--model", "small", env=environment))

    def test_a_limit_on_the_size_of_files_is_an_error_and_no_signal(self):
        done = self.run_program("data", "text.txt", "--out", "more", "--tokenizer", "bytes",
                                before=("sh", "-c", 'ulimit -f 4; exec "$@"', "sh"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("File too large", done.stderr)
        self.assertFalse(self.path("more/train.bin").exists())

    def test_a_profile_that_cannot_be_is_refused_before_anything_is_measured(self):
        on_host = ["--model", "model.json", "--device", "host"]
        for words, code in ((on_host, "not_supported"), ([*on_host, "--again"], "not_supported"),
                            (["train.json"], "invalid_argument")):
            done = self.run_program("profile", *words, "--profile", "m.json", "--json")
            self.assertNotEqual(done.returncode, 0)
            self.assertEqual(json.loads(done.stdout)["error"]["code"], code)
        self.assertFalse((self.folder / "m.json").exists())

    def test_force_is_named_where_it_helps(self):
        self.assertIn("--force", self.refused("data", "text.txt", "--out", "data"))
        self.succeed(*self.train("run", 1))
        for expected in (0, 2):
            done = self.run_program("export", "run", "hf")
            self.assertEqual(done.returncode, expected, done.stderr)
        self.assertIn("--force", done.stderr)
        self.succeed("export", "run", "hf", "--force")


class Threads(ProgramTestCase):
    def test_that_the_environment_limits_are_refused(self):
        environment = os.environ | {"OMP_THREAD_LIMIT": "1"}
        said = self.refused(*self.train("run", 1, "--compute-threads", 2), env=environment)
        self.assertIn("OMP_THREAD_LIMIT", said)

    def test_of_openmp_spin_briefly_unless_the_user_has_chosen(self):
        plain = {key: value for key, value in os.environ.items()
                 if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
        for chosen, spins in (({}, "1000"), ({"GOMP_SPINCOUNT": "77"}, "77"),
                              ({"OMP_WAIT_POLICY": "active"}, r"\d{7,}|INFINITY"),
                              ({"OMP_WAIT_POLICY": "passive"}, "0")):
            environment = plain | {"OMP_DISPLAY_ENV": "verbose"} | chosen
            said = self.succeed("--version", env=environment).stderr
            # The last one is of the process that did the work, if the program started itself again.
            shown = ["none", *re.findall(r"GOMP_SPINCOUNT = '(.*)'", said)]
            self.assertRegex(shown[-1], f"^({spins})$")


class Hub(ProgramTestCase):
    def setUp(self):
        super().setUp()
        self.succeed(*self.train("run", 2))
        folder = self.folder / "home" / "hub" / "models--somebody--tiny-1.0"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text("0123abc")
        (folder / "snapshots").mkdir()
        self.succeed("export", "run", folder / "snapshots" / "0123abc")
        self.environment = {key: value for key, value in os.environ.items()
                            if not key.startswith(("HF_", "HUGGINGFACE_", "XDG_"))}
        self.environment["HF_HOME"] = str(self.folder / "home")

    def run_there(self, *arguments):
        return self.run_program(*arguments, env=self.environment)

    def test_a_name_is_looked_up_in_the_local_cache(self):
        name = "somebody/tiny-1.0"
        done = self.run_there("eval", "--model", name, "--data", "data", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        of_run = self.run_there("eval", "--run", "run", "--data", "data", "--json")
        self.assertEqual(json.loads(done.stdout)["tokens"], json.loads(of_run.stdout)["tokens"])
        done = self.run_there("train", "train.json", "--from", name, "--data", "data", "--run",
                              "next", "--steps", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("snapshots/0123abc", done.stderr)
        for word in (name, f"{name}@main", f"{name}@0123abc"):
            done = self.run_there("info", word, "--json")
            self.assertEqual(json.loads(done.stdout)["kind"], "hf_checkpoint", word)
        self.environment["HOME"] = self.environment.pop("HF_HOME")
        (self.folder / "home" / ".cache").mkdir()
        (self.folder / "home" / "hub").rename(self.folder / "home" / ".cache" / "hub")
        (self.folder / "home" / ".cache" / "huggingface").mkdir()
        (self.folder / "home" / ".cache" / "hub").rename(
            self.folder / "home" / ".cache" / "huggingface" / "hub")
        self.assertEqual(self.run_there("info", name).returncode, 0)

    def test_what_is_not_there_is_answered_with_how_to_download_it(self):
        for arguments in (["train", "train.json", "--from", "meta-llama/Llama-3.1-8B", "--data",
                           "data", "--run", "next"],
                          ["eval", "--model", "meta-llama/Llama-3.1-8B", "--data", "data"],
                          ["plan", "train.json", "--from", "meta-llama/Llama-3.1-8B"]):
            done = self.run_there(*arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("hf download meta-llama/Llama-3.1-8B", done.stderr)
        done = self.run_there("info", "somebody/tiny-1.0@beta")
        self.assertIn("hf download somebody/tiny-1.0 --revision beta", done.stderr)
        self.assertFalse((self.folder / "next").exists())


class DoesNotFit(ProgramTestCase):
    def test_is_said_by_a_run_that_was_not_planned(self):
        said = self.refused(*self.train("run", 1, "--device-memory", "64KiB"), code=3)
        self.assertIn("What would make it fit", said)

    def plan(self, *more):
        return self.run_program("plan", "train.json", "--model", "model.json", *more)

    def configure(self, micro_batch=4, accumulation=1, rounds=1, **section):
        config = {**CONFIG, "train_micro_batch_size_per_gpu": micro_batch,
                  "gradient_accumulation_steps": accumulation, "bf16": {"enabled": True},
                  "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
                  "spillway": {**CONFIG["spillway"], "rounds": rounds, **section}}
        self.write("train.json", config)

    def advice(self, *budgets) -> dict:
        """What each change would need, as the refusal says: change -> its parenthesis."""
        done = self.plan(*budgets)
        self.assertEqual(done.returncode, 3, done.stderr)
        parts = done.stderr.split("What would make it fit: ")[1].strip().split("; or ")
        self.assertIn("memory of at least", parts[0])
        return {re.sub(r" \([^()]*\)$", "", part): part.rsplit("(", 1)[-1].rstrip(")")
                for part in parts[1:]}

    def test_advises_sizes_that_fit_as_they_are_written(self):
        self.configure()
        for budget in (("--device-memory", "64KiB"), ("--host-memory", "64KiB"),
                       ("--device-memory", "64KiB", "--host-memory", "64KiB")):
            done = self.plan(*budget)
            self.assertEqual(done.returncode, 3, done.stderr)
            first = done.stderr.split("What would make it fit: ")[1].split("; or ")[0]
            sizes = dict(re.findall(r"(--\w+-memory) of at least (\S+ \w+)", first))
            given = dict(zip(budget[::2], budget[1::2])) | sizes
            self.assertEqual(self.plan(*[word for pair in given.items() for word in pair])
                             .returncode, 0, first)

    def test_advises_no_change_that_needs_as_much(self):
        done = self.run_program("plan", "--model", "llama-3-70b", "--machine", "h100")
        self.assertEqual(done.returncode, 3, done.stderr)
        needed, *others = (float(size) for size in re.findall(
            r"--host-memory of at least (\S+) GiB", done.stderr))
        self.assertGreater(len(others), 0)
        for other in others:
            self.assertLessEqual(other, needed, done.stderr)

    def test_names_no_flag_that_has_been_followed_already(self):
        done = self.run_program("plan", "train.json", "--model", "llama-3-70b",
                                "--device-memory", "100TB", "--host-memory", "100TB")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertRegex(done.stderr, "would make it fit: free (device|host) memory of at least")
        self.assertNotRegex(done.stderr, "--(device|host)-memory of at least")

    @unittest.skipIf(glob.glob("/dev/nvidia[0-9]*"), "this machine has a GPU")
    def test_a_missing_driver_is_said_before_a_missing_disk(self):
        done = self.run_program(*self.train("run", 1, "--device", "cuda", "--nvme", "none"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("--device cuda: ", done.stderr)
        self.assertNotIn("--nvme", done.stderr)
        self.assertFalse(self.path("run").exists())

    @unittest.skipIf(glob.glob("/dev/nvidia[0-9]*"), "this machine has a GPU")
    def test_a_device_budget_without_a_device_is_said(self):
        free = {key: value for key, value in os.environ.items() if key != "SPILLWAY_DEVICE"}
        plan = ("plan", "train.json", "--model", "model.json", "--device-memory", "40MiB")
        for arguments in (plan, self.train("run", 1, "--device-memory", "40MiB")):
            self.assertIn("device memory of 40.0 MiB without a GPU: ",
                          self.succeed(*arguments, env=free).stderr)
        for more in (("--device", "host"), ("--machine", "h100")):
            self.assertNotIn("without a GPU", self.succeed(*plan, *more, env=free).stderr)

    def expect_needs(self, text, *arguments):
        """The change, tried, fits into what was said of device and host, to three digits."""
        for tier in ("device", "host"):
            number, unit = re.search(rf"\b{tier} (\S+) (\w+)", text).groups()
            enough = f"{float(number) * 1.01}{unit}"
            done = self.plan(*arguments, f"--{tier}-memory", enough)
            self.assertEqual(done.returncode, 0, f"{text}: {done.stderr}")
            done = self.plan(*arguments, f"--{tier}-memory", f"{float(number) * 0.3}{unit}")
            self.assertEqual(done.returncode, 3, text)

    def test_of_the_host_advises_disk_and_smaller_states_with_their_needs(self):
        self.configure()
        budget = ("--host-memory", "900KB")
        advice = self.advice(*budget)
        (self.folder / "disk").mkdir()
        self.expect_needs(advice["state on disk (--nvme DIR)"], "--nvme", "disk")
        form = next(key for key in advice if key.startswith("spillway.state_format "))
        self.configure(state_format=form.split()[1])
        self.expect_needs(advice[form])

    def test_of_the_device_advises_smaller_micro_batches_with_their_needs(self):
        self.configure(micro_batch=64)
        budget = ("--device-memory", "900KB")
        advice = self.advice(*budget)
        change = next(key for key in advice if key.startswith("train_micro_batch_size_per_gpu"))
        micro, accumulation, rounds = map(int, re.findall(r"\d+", change))
        self.assertEqual(micro * accumulation, 64)
        self.configure(micro, accumulation, rounds)
        self.expect_needs(advice[change])

    def test_of_two_tiers_advises_two_changes_that_fit_together(self):
        budget = ("--device-memory", "700KiB", "--host-memory", "700KiB")
        self.configure(micro_batch=64)
        advice = self.advice(*budget)
        (self.folder / "disk").mkdir()
        change = next(key for key in advice if key.startswith("train_micro_batch_size_per_gpu")
                      and "together with state on disk" in key)
        self.assertTrue(all(" together with " in key for key in advice), advice)
        self.assertLessEqual(len(advice), 4)
        micro, accumulation, rounds = map(int, re.findall(r"\d+", change))
        # Neither alone is enough, both are.
        self.assertEqual(self.plan(*budget, "--nvme", "disk").returncode, 3)
        self.configure(micro, accumulation, rounds)
        self.assertEqual(self.plan(*budget).returncode, 3)
        self.assertEqual(self.plan(*budget, "--nvme", "disk").returncode, 0)

    def test_no_change_is_advised_that_would_be_refused(self):
        self.configure(micro_batch=64, accumulation=200000)  # 262,144 at most, of these layers
        for budget in ("--device-memory", "--host-memory"):
            done = self.plan(budget, "500KiB")
            self.assertEqual(done.returncode, 3, done.stderr)
            for number in re.findall(r"gradient_accumulation_steps (\d+)", done.stderr):
                self.assertLessEqual(int(number), 262144, done.stderr)

    def test_says_how_much_a_change_lacks_that_is_not_enough(self):
        self.configure(micro_batch=1)
        done = self.plan("--host-memory", "64KiB")
        self.assertEqual(done.returncode, 3)
        self.assertRegex(done.stderr, r"int8 \(other mathematics\) with --host-memory of at least")
        self.assertRegex(done.stderr, r"--nvme DIR\) with --host-memory of at least")


if __name__ == "__main__":
    main()
