"""tools/python/spillway_tokenize.py writes the token files that spillway data writes."""

import json
import os
import pathlib
import re
import subprocess
import sys
import zlib

import numpy
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HELPER = pathlib.Path(__file__).parents[2] / "tools" / "python" / "spillway_tokenize.py"
TEXT = "It was the best of times,\r\nit was the worst of times: naïve café 😀.\n\n" * 50


def run(*arguments, stdin="", **environment):
    return subprocess.run([sys.executable, str(HELPER), *map(str, arguments)], input=stdin,
                          env={**os.environ, **environment}, capture_output=True, encoding="utf-8",
                          check=False)


@pytest.fixture(name="hf_dir")
def make_hf_dir(tmp_path):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.enable_truncation(max_length=7)  # as some published files have; must not apply
    directory = tmp_path / "hf"
    directory.mkdir()
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(name="text")
def make_text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT.encode())
    return path


def test_writes_what_the_tokenizer_says(hf_dir, text, tmp_path):
    out = tmp_path / "out"
    done = run(hf_dir, text, text, "--out", out, "--val", 0.25, "--separator", "<|endoftext|>")
    assert done.returncode == 0, done.stderr
    tokenizer = Tokenizer.from_file(str(hf_dir / "tokenizer.json"))
    tokenizer.no_truncation()
    one = tokenizer.encode(TEXT).ids + [tokenizer.token_to_id("<|endoftext|>")]
    train = numpy.fromfile(out / "train.bin", dtype="<u2").tolist()
    val = numpy.fromfile(out / "val.bin", dtype="<u2").tolist()
    assert train + val == one + one
    assert len(train) == int(len(one + one) * 0.75)
    meta = json.loads((out / "meta.json").read_text())
    assert meta.pop("tokenizer_crc32") == fingerprint(tokenizer)
    assert re.fullmatch("[0-9a-f]{8}", meta.pop("tokenizer_rules_crc32"))
    assert meta == {"dtype": "uint16", "vocab_size": tokenizer.get_vocab_size(),
                    "tokenizer": str(hf_dir)}
    assert sorted(os.listdir(out)) == ["meta.json", "train.bin", "val.bin"]


def fingerprint(tokenizer):
    """As tokenizer_files.hpp says it, from what the library itself knows."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    lines = [f"{number} {token}" for number, token in sorted((i, t) for t, i in vocabulary.items())]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    lines += [each if isinstance(each, str) else " ".join(each) for each in merges]
    return f"{zlib.crc32(chr(10).join(lines).encode()):08x}"


@pytest.mark.parametrize("of_run", [False, True])
def test_decode_inverts_encode(hf_dir, tmp_path, of_run):
    if of_run:  # a run keeps its checkpoint's tokenizer in a folder
        (tmp_path / "run").mkdir()
        hf_dir = hf_dir.rename(tmp_path / "run" / "tokenizer").parent
    ids = run(hf_dir, "--encode", stdin=TEXT)
    assert ids.returncode == 0, ids.stderr
    text = subprocess.run([sys.executable, str(HELPER), str(hf_dir), "--decode"],
                          input=ids.stdout.encode(), capture_output=True, check=True)
    assert text.stdout.decode() == TEXT


DOCUMENTS = ["one document", "another,\nin two lines", "naïve café"]


def tokens_in(out):
    return [each for name in ("train.bin", "val.bin")
            for each in numpy.fromfile(out / name, dtype="<u2").tolist()]


@pytest.mark.parametrize("name", ["texts.jsonl", "texts.NDJSON"])
def test_takes_the_field_of_every_line(hf_dir, tmp_path, name):
    path = tmp_path / name
    path.write_text("".join(json.dumps({"id": 1, "content": each}) + "\n\n" for each in DOCUMENTS))
    done = run(hf_dir, path, "--out", tmp_path / "out", "--field", "content", "--separator",
               "<|endoftext|>")
    assert done.returncode == 0, done.stderr
    tokenizer = Tokenizer.from_file(str(hf_dir / "tokenizer.json"))
    tokenizer.no_truncation()
    end = [tokenizer.token_to_id("<|endoftext|>")]
    expected = [each for text in DOCUMENTS for each in tokenizer.encode(text).ids + end]
    assert tokens_in(tmp_path / "out") == expected
    done = run(hf_dir, path, "--out", tmp_path / "out2")
    assert done.returncode == 2 and "--field" in done.stderr and "content" in done.stderr
    path.write_text("not json\n")
    done = run(hf_dir, path, "--out", tmp_path / "out2")
    assert done.returncode == 2 and "line 1 is not JSON" in done.stderr


def test_reads_parquet_with_pyarrow_or_says_so(hf_dir, tmp_path):
    (tmp_path / "texts.parquet").write_bytes(b"PAR1")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "pyarrow.py").write_text("raise ImportError('not here')\n")
    done = run(hf_dir, tmp_path / "texts.parquet", "--out", tmp_path / "out",
               PYTHONPATH=str(tmp_path / "path"))
    assert done.returncode == 2 and "pip install pyarrow" in done.stderr, done.stderr
    (tmp_path / "texts.jsonl.gz").write_bytes(b"\x1f\x8b")
    done = run(hf_dir, tmp_path / "texts.jsonl.gz", "--out", tmp_path / "out")
    assert done.returncode == 2 and "unpack" in done.stderr


def test_refuses_to_replace_unless_forced(hf_dir, text, tmp_path):
    assert run(hf_dir, text, "--out", tmp_path / "out").returncode == 0
    again = run(hf_dir, text, "--out", tmp_path / "out")
    assert again.returncode == 2 and "meta.json exists" in again.stderr
    assert run(hf_dir, text, "--out", tmp_path / "out", "--val", 0, "--force").returncode == 0
    assert sorted(os.listdir(tmp_path / "out")) == ["meta.json", "train.bin"]


def test_says_which_package_is_missing(hf_dir, text, tmp_path):
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "tokenizers.py").write_text("raise ImportError('not here')\n")
    done = run(hf_dir, text, "--out", tmp_path / "out", PYTHONPATH=str(tmp_path / "path"))
    assert done.returncode == 2
    assert "`tokenizers` cannot be imported" in done.stderr
    assert "pip install tokenizers" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("broken, message", [
    ("text", "not valid UTF-8 at byte 2"), ("tokenizer", "is not a tokenizer"),
    ("directory", "does not exist"), ("separator", "no token '<missing>'"),
    ("val", "not in [0, 1)"), ("empty", "cannot be split")])
def test_names_the_cause(hf_dir, text, tmp_path, broken, message):
    extra = []
    if broken == "text":
        text.write_bytes(b"ab\xff")
    elif broken == "tokenizer":
        (hf_dir / "tokenizer.json").write_text("{}")
    elif broken == "directory":
        hf_dir = tmp_path / "none"
    elif broken == "separator":
        extra = ["--separator", "<missing>"]
    elif broken == "val":
        extra = ["--val", "1"]
    elif broken == "empty":
        text.write_bytes(b"")
    done = run(hf_dir, text, "--out", tmp_path / "out", *extra)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", "-p", "no:cacheprovider"]))
