"""Runs of models with a Hugging Face tokenizer: token ids in and out, what exports carry, and data
of another tokenizer. usage: tokenizer_runs_test.py PROGRAM"""
import json
import shutil
import sys
import zlib

from program_test_case import ROOT, ProgramTestCase, main

sys.path.append(str(ROOT / "tools" / "python"))
import spillway_tokenize

MERGES = ["a b", "ab c"]
SMALL_FILES = {
    "tokenizer_config.json": '{"tokenizer_class": "PreTrainedTokenizerFast"}',
    "special_tokens_map.json": '{"eos_token": "<end>"}',
    "chat_template.jinja": "{% for message in messages %}{{ message.content }}{% endfor %}",
    "generation_config.json": '{"temperature": 0.6}'}


def tokenizer(tokens, merges) -> str:
    return json.dumps({"version": "1.0", "added_tokens": [{"id": 255, "content": "<end>"}],
                       "model": {"type": "BPE", "merges": merges,
                                 "vocab": {token: i for i, token in enumerate(tokens)}}})


TOKENS = [f"é{i}" for i in range(255)]
# As tokenizer_fingerprint.hpp says it: lines of the ids and tokens, then of the merges.
LINES = [f"{i} {token}" for i, token in enumerate(TOKENS)] + ["255 <end>"] + MERGES
CRC32 = f"{zlib.crc32(chr(10).join(LINES).encode()):08x}"


class TokenizerRuns(ProgramTestCase):
    def setUp(self):
        super().setUp()
        self.done(*self.train("first", 1))
        self.done("export", "first", "hf")
        for name, text in SMALL_FILES.items():
            self.write(f"hf/{name}", text)
        self.write("hf/tokenizer.json", tokenizer(TOKENS, MERGES))
        shutil.copytree(self.folder / "data", self.folder / "ids")
        self.describe(tokenizer=str(self.folder / "hf"), tokenizer_crc32=CRC32)

    def describe(self, **record):
        self.write("ids/meta.json", {"dtype": "uint16", "vocab_size": 256, **record})

    def done(self, *arguments, **options) -> str:
        return self.succeed(*arguments, **options).stdout

    def of_ids(self, run, *more) -> list:
        return ["train", "train.json", "--data", "ids", "--run", run, "--steps", "2", *more]

    def expect_carried(self, folder):
        for name in ("tokenizer.json", *SMALL_FILES):
            self.assertEqual((self.folder / folder / name).read_bytes(),
                             (self.folder / "origin" / name).read_bytes(), name)

    def test_files_that_cannot_be_looked_at_do_not_count_as_missing(self):
        self.done(*self.of_ids("run", "--from", "hf"))
        for path, command in (("hf/tokenizer.json", ["eval", "--model", "hf", "--data", "ids"]),
                              ("run/tokenizer/generation_config.json", ["export", "run", "out"])):
            (self.folder / path).unlink()
            (self.folder / path).symlink_to(self.folder / path)
            done = self.run_program(*command)
            self.assertNotEqual(done.returncode, 0, path)
            self.assertRegex(done.stderr, f"{path}: Too many levels of symbolic links")

    def test_exports_carry_the_small_files_of_the_checkpoint(self):
        self.configure(save_every=1)
        self.done(*self.of_ids("run", "--from", "hf"))
        (self.folder / "hf").rename(self.folder / "origin")  # the run needs it no more
        self.done("export", "run", "out")
        self.expect_carried("out")
        self.done("export", "run/checkpoints/step-1", "of_step_1")
        self.expect_carried("of_step_1")
        # Those of the target stay where the run has none, and give way where it has.
        self.write("out/tokenizer.json", "{}")
        self.write("out/README.md", "mine")
        self.done("export", "run", "out", "--force")
        self.expect_carried("out")
        self.assertEqual((self.folder / "out" / "README.md").read_text(), "mine")
        self.describe()
        self.done(*self.of_ids("next", "--from", "run"))
        self.done("export", "next", "of_next")
        self.expect_carried("of_next")

    def test_a_new_model_takes_the_tokenizer_of_its_data(self):
        self.done(*self.of_ids("run", "--model", "model.json"))
        shutil.copytree(self.folder / "hf", self.folder / "origin")
        self.expect_carried("run/tokenizer")

    def test_token_ids_go_in_and_out(self):
        self.done(*self.of_ids("run", "--from", "hf"))
        generate = ("generate", "--run", "run", "--tokens", "4", "--seed", "1")
        ids = self.done(*generate, "--prompt-tokens", "7,8,9").split()
        self.assertEqual((len(ids), ids[:3]), (7, ["7", "8", "9"]))
        self.assertTrue(all(0 <= int(each) < 256 for each in ids))
        self.assertEqual(self.done(*generate, "--prompt-tokens", "7 8 9").split(), ids)
        piped = self.done(*generate, "--prompt-tokens", "-", input="7 8\n9\n")
        self.assertEqual(piped.split(), ids)
        document = json.loads(self.done(*generate, "--prompt-tokens", "7,8,9", "--json"))
        self.assertEqual(document["tokens"], [int(each) for each in ids])
        self.assertNotIn("text", document)
        for wrong in (["--prompt", "text"], [], ["--prompt-tokens", "7,x"],
                      ["--prompt-tokens", "256"]):
            done = self.run_program(*generate, *wrong)
            self.assertEqual(done.returncode, 2, done.stderr)
        done = self.run_program(*generate, "--prompt", "text")
        self.assertIn("spillway_tokenize.py run --encode", done.stderr)

    def test_a_temperature_near_zero_takes_the_most_likely_tokens(self):
        near, zero = (
            self.document("generate", "--run", "first", "--prompt-tokens", "7,8,9", "--tokens", 4,
                          "--seed", 1, "--temperature", temperature)["tokens"]
            for temperature in (1e-9, 0))
        self.assertEqual(near, zero)

    def test_data_of_another_tokenizer_is_refused(self):
        shutil.copytree(self.folder / "hf", self.folder / "other")
        self.write("other/tokenizer.json", tokenizer(TOKENS, MERGES[:1]))
        other = str(self.folder / "other")
        for record in ({"tokenizer": other, "tokenizer_crc32": "00000000"}, {"tokenizer": other},
                       {"tokenizer": "bytes"}):
            with self.subTest(record=record):
                self.describe(**record)
                done = self.run_program(*self.of_ids("run", "--from", "hf"))
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn("another", done.stderr)
                self.assertFalse((self.folder / "run").exists())
                done = self.run_program("eval", "--model", "hf", "--data", "ids")
                self.assertEqual(done.returncode, 2, done.stderr)

    def test_the_same_tokenizer_written_in_another_way_is_none(self):
        pairs = [merge.split(" ") for merge in MERGES]
        self.write("hf/tokenizer.json", json.dumps(json.loads(tokenizer(TOKENS, pairs)), indent=1))
        self.done(*self.of_ids("run", "--from", "hf"))
        self.describe()  # made by somebody who did not say with what
        self.done(*self.of_ids("run2", "--from", "hf"))


def written(**parts) -> dict:
    """A tokenizer.json whose `parts` are not the usual ones."""
    model = {**json.loads(tokenizer(TOKENS, MERGES))["model"], "dropout": None, "unk_token": None,
             "ignore_merges": False, **parts.pop("model", {})}
    end = {"id": 255, "content": "<end>", "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True, **parts.pop("added", {})}
    return {"version": "1.0", "truncation": None, "added_tokens": [end], "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False,
                              "trim_offsets": True, "use_regex": True},
            "post_processor": None, "decoder": None, "model": model, **parts}


def metaspace(**settings) -> dict:
    return {"type": "Sequence", "pretokenizers": [
        {"type": "Metaspace", "replacement": "\u2581", **settings}]}


SPLIT = {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}| "}, "behavior": "Isolated"}
UNIGRAM = {"type": "Unigram", "unk_id": 0, "vocab": [[token, -1.0 / (3 + i)] for i, token
                                                     in enumerate(TOKENS + ["<end>"])]}
OTHER_SCORE = {**UNIGRAM, "vocab": [["\u00e90", -0.25], *UNIGRAM["vocab"][1:]]}
DIFFERENT = [
    (written(), written(normalizer={"type": "NFC"})),
    (written(normalizer={"type": "NFC"}), written(normalizer={"type": "NFKC"})),
    (written(), written(pre_tokenizer=None)),
    (written(), written(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True})),
    (written(), written(pre_tokenizer={"type": "ByteLevel", "use_regex": False})),
    (written(pre_tokenizer=SPLIT), written(pre_tokenizer={**SPLIT, "invert": True})),
    (written(pre_tokenizer=metaspace()), written(pre_tokenizer=metaspace(add_prefix_space=False))),
    (written(), written(added={"lstrip": True})),
    (written(), written(added={"normalized": True})),
    (written(), written(model={"ignore_merges": True})),
    (written(), written(model={"unk_token": "\u00e91"})),
    (written(), written(model={"byte_fallback": True})),
    (written(), written(model={"dropout": 0.1})),
    (written(model={"dropout": 0.1}), written(model={"dropout": 0.2})),
    (written(model=UNIGRAM), written(model=OTHER_SCORE)),
]
SAME = [
    (written(), dict(reversed(written().items()))),
    (written(), written(decoder={"type": "ByteLevel"}, post_processor={"type": "ByteLevel"},
                        truncation={"max_length": 5, "strategy": "LongestFirst"})),
    (written(), written(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False,
                                       "trim_offsets": False})),
    (written(), written(model={"type": None, "fuse_unk": False, "end_of_word_suffix": ""})),
    (written(pre_tokenizer=metaspace(add_prefix_space=True, str_rep="\u2581")),
     written(pre_tokenizer=metaspace(prepend_scheme="always", split=True))),
    (written(pre_tokenizer=metaspace(add_prefix_space=False)),
     written(pre_tokenizer=metaspace(prepend_scheme="never", split=True))),
    (written(model=UNIGRAM), written(model=UNIGRAM, added={"content": "<end>"})),
]


class Rules(ProgramTestCase):
    """What says how text becomes tokens, beside the tokens. The helper that makes the data and the
    program that compares have each their own code for it."""

    def setUp(self):
        super().setUp()
        self.succeed(*self.train("run", 1))
        self.succeed("export", "run", "hf")

    def compare(self, of_data, of_model, record):
        """The exit code and what is said of data of one tokenizer for a model with the other."""
        made_with = self.write("other.json", of_data)
        self.write("hf/tokenizer.json", json.dumps(of_model, indent=1))
        meta = {"dtype": "uint16", "vocab_size": 256, "tokenizer": str(made_with)}
        if record:
            of_tokens, of_rules = spillway_tokenize.fingerprint(made_with)
            meta |= {"tokenizer_crc32": of_tokens, "tokenizer_rules_crc32": of_rules}
        self.write("data/meta.json", meta)
        done = self.run_program("eval", "--model", "hf", "--data", "data")
        return done.returncode, done.stderr

    def test_that_differ_are_refused(self):
        for number, pair in enumerate(DIFFERENT):
            for of_data, of_model in (pair, pair[::-1]):
                with self.subTest(number=number):
                    code, said = self.compare(of_data, of_model, number % 2 == 0)
                    self.assertEqual(code, 2, said)
                    self.assertIn("normalizes or splits text in another way", said)

    def test_that_are_written_in_another_way_are_taken(self):
        for number, pair in enumerate(SAME + [(one, one) for one, _ in DIFFERENT]):
            with self.subTest(number=number):
                code, said = self.compare(*pair, record=True)
                self.assertEqual(code, 0, said)


class TextFiles(ProgramTestCase):
    def test_that_hold_no_plain_text_are_no_text(self):
        for name, content in (("a.jsonl", b'{"text": "one"}\n'), ("b.NDJSON", b"{}\n"),
                              ("c.parquet", b"PAR1"), ("d.txt.gz", b"\x1f\x8b")):
            (self.folder / name).write_bytes(content * 50)
            for kind in ("bytes", "chars"):
                done = self.run_program("data", "text.txt", name, "--out", "out", "--tokenizer",
                                        kind)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(name, done.stderr)
                self.assertFalse((self.folder / "out" / "meta.json").exists())
        done = self.run_program("data", "a.jsonl", "--out", "out")
        self.assertIn("spillway_tokenize.py", done.stderr)


if __name__ == "__main__":
    main()
