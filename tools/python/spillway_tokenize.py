#!/usr/bin/env python3
"""Prepares token files with a Hugging Face tokenizer.json, and encodes and decodes with it.

  spillway_tokenize.py HF_DIR TEXT... --out DIR [--val 0.1] [--separator TOKEN] [--force]
  spillway_tokenize.py HF_DIR --encode     text on stdin, token ids on stdout
  spillway_tokenize.py HF_DIR --decode     token ids on stdin, text on stdout

HF_DIR has a tokenizer.json, or is a run that keeps the tokenizer of its checkpoint. Writes the
files that `spillway data` writes: train.bin and val.bin (little-endian uint16, or uint32 for
vocabularies above 65,536) and meta.json. Needs the `tokenizers` package and nothing else. A text is
encoded as a whole, because a tokenizer may look across any border: memory is that of the largest
text and 4 bytes a token.

A TEXT that ends in .jsonl or .ndjson has a JSON object a line, and one in .parquet rows (read with
the package `pyarrow`): their field --field is the text, each a document of its own.
"""

import argparse
import array
import json
import os
import stat
import struct
import sys
import zlib

OUTPUTS = ("meta.json", "train.bin", "val.bin")


class Refused(Exception):
    """A cause that the user can remove. Exit code 2, as of every Spillway command."""


def tokenizer_file(hf_dir):
    """The tokenizer.json itself, that of a checkpoint, or what a run keeps of its checkpoint."""
    if hf_dir.endswith(".json"):
        return hf_dir
    of_checkpoint = os.path.join(hf_dir, "tokenizer.json")
    of_run = os.path.join(hf_dir, "tokenizer", "tokenizer.json")
    return of_run if os.path.isfile(of_run) and not os.path.isfile(of_checkpoint) else of_checkpoint


def crc32(text):
    return f"{zlib.crc32(text if isinstance(text, bytes) else text.encode()):08x}"


def settled(value):
    """What versions of the library write in two ways, in one."""
    if isinstance(value, list):
        return [settled(each) for each in value]
    if not isinstance(value, dict):
        return value
    value = {key: settled(each) for key, each in value.items()}
    if value.get("type") == "ByteLevel":
        value.pop("trim_offsets", None)
        value.setdefault("use_regex", True)
    elif value.get("type") == "Metaspace":
        never = value.pop("add_prefix_space", True) is False
        value.setdefault("prepend_scheme", "never" if never else "always")
        value.setdefault("split", True)
        value.pop("str_rep", None)
    return value


def as_bytes(value):
    if isinstance(value, str):
        return f"{len(value.encode())}:{value}".encode()
    if value is True:
        return b"t"
    if isinstance(value, (int, float)) and value is not False:
        return b"n" + struct.pack(">d", value).hex().encode()
    if isinstance(value, list):
        return b"[" + b"".join(map(as_bytes, value)) + b"]"
    if isinstance(value, dict):
        told = sorted((key.encode(), key) for key, each in value.items()
                      if each is not None and each is not False and each not in ("", [], {}))
        return b"{" + b"".join(as_bytes(key) + as_bytes(value[key]) for _, key in told) + b"}"
    return b"-"


def rules(document):
    """How text becomes tokens, other than by the tokens themselves and their merges."""
    model = {key: value for key, value in document["model"].items()
             if key not in ("vocab", "merges")}
    if "merges" in document["model"]:
        model["type"] = "BPE"
    added = document.get("added_tokens")
    if added is not None:
        added = sorted(added, key=lambda each: each["id"])
    vocabulary = document["model"]["vocab"]
    scores = [entry[1] for entry in vocabulary] if isinstance(vocabulary, list) else []
    parts = [document.get("normalizer"), document.get("pre_tokenizer"), added, model, scores]
    return as_bytes(settled(parts))


def fingerprint(path):
    """What `spillway` compares a checkpoint's tokenizer with, both parts of it;
    tokenizer_fingerprint.hpp defines them."""
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    vocabulary = document["model"]["vocab"]
    if isinstance(vocabulary, dict):
        tokens = {(number, token) for token, number in vocabulary.items()}
    else:
        tokens = {(number, entry[0]) for number, entry in enumerate(vocabulary)}
    tokens |= {(each["id"], each["content"]) for each in document.get("added_tokens") or []}
    lines = [f"{number} {token}" for number, token in sorted(tokens)]
    lines += [merge if isinstance(merge, str) else " ".join(merge)
              for merge in document["model"].get("merges") or []]
    return crc32("\n".join(lines)), crc32(rules(document))


def load_tokenizer(hf_dir):
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise Refused(
            f"the Python package `tokenizers` cannot be imported ({error}); "
            f"install it with: {sys.executable} -m pip install tokenizers"
        ) from error
    path = tokenizer_file(hf_dir)
    if not os.path.isfile(path):
        raise Refused(f"{path} does not exist; give a directory that holds a tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the package raises its own kinds for a broken file
        raise Refused(f"{path} is not a tokenizer that `tokenizers` can read: {error}") from error
    # A saved truncation or padding would drop or invent training text.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def open_regular(path):
    """For reading. Opening a pipe must report what it is, not wait for its writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refused(f"{path} is not a regular file; give a file on disk")
    return descriptor


def read_text(path):
    """As it is: no newline translation, no repair of what is not UTF-8."""
    try:
        with open(open_regular(path), encoding="utf-8", errors="strict", newline="") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise Refused(f"{path} is not valid UTF-8 at byte {error.start}; convert it") from error


def json_documents(path, field):
    """The field of every object of a file with one a line."""
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise Refused(f"{path}: line {number} is not JSON: {error}") from error
        text = entry.get(field) if isinstance(entry, dict) else None
        if not isinstance(text, str):
            has = ", ".join(entry) if isinstance(entry, dict) else "no fields"
            raise Refused(f"{path}: line {number} has no text in a field {field!r} (it has {has}); "
                          "name the field with --field")
        yield text


def parquet_documents(path, field):
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise Refused(f"{path} is read with the Python package `pyarrow`, which cannot be imported "
                      f"({error}); install it with: {sys.executable} -m pip install pyarrow, or "
                      "convert the file to .jsonl") from error
    os.close(open_regular(path))
    file = parquet.ParquetFile(path)
    if field not in file.schema_arrow.names:
        raise Refused(f"{path} has no column {field!r} (it has "
                      f"{', '.join(file.schema_arrow.names)}); name the column with --field")
    for batch in file.iter_batches(columns=[field]):
        for text in batch.column(0).to_pylist():
            if not isinstance(text, str):
                raise Refused(f"{path}: the column {field!r} is not text in every row")
            yield text


PACKED = (".gz", ".zst", ".bz2", ".xz", ".zip", ".arrow")


def documents(path, field):
    """The texts of a file."""
    kind = os.path.splitext(path)[1].lower()
    if kind in PACKED:
        raise Refused(f"{path} does not hold plain text; unpack or convert it")
    if kind in (".jsonl", ".ndjson"):
        return json_documents(path, field)
    if kind == ".parquet":
        return parquet_documents(path, field)
    return [read_text(path)]


def token_type(vocab_size):
    """Name in meta.json and array type code of the narrowest type that holds every id."""
    name, code = ("uint16", "H") if vocab_size <= 65536 else ("uint32", "I")
    assert array.array(code).itemsize == (2 if code == "H" else 4)
    return name, code


def encode_texts(tokenizer, arguments, code):
    tokens = array.array(code)
    after = []
    if arguments.separator is not None:
        identifier = tokenizer.token_to_id(arguments.separator)
        if identifier is None:
            raise Refused(f"the tokenizer has no token {arguments.separator!r} to put after each "
                          "text")
        after = [identifier]
    for path in arguments.texts:
        for text in documents(path, arguments.field):
            # Ids are checked by the array: one that does not fit raises, none wraps around.
            tokens.extend(tokenizer.encode(text, add_special_tokens=False).ids)
            tokens.extend(after)
    return tokens


def write_durably(path, data):
    """Writes `.NAME.partial` beside `path`; the caller renames it."""
    directory, name = os.path.split(path)
    partial = os.path.join(directory, f".{name}.partial")
    try:
        os.unlink(partial)  # a leftover of a killed process
    except FileNotFoundError:
        pass
    with open(partial, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return partial


def publish(out, files):
    """meta.json goes first and comes last: it never describes token files that are not its own."""
    partials = []
    try:
        for name, data in files.items():
            partials.append((write_durably(os.path.join(out, name), data), name))
        for name in OUTPUTS:
            if name == "meta.json" or name not in files:
                try:
                    os.unlink(os.path.join(out, name))
                except FileNotFoundError:
                    pass
        for partial, name in sorted(partials, key=lambda each: each[1] == "meta.json"):
            os.rename(partial, os.path.join(out, name))
    except OSError:
        for partial, _ in partials:
            if os.path.exists(partial):
                os.unlink(partial)
        raise


def prepare(arguments):
    tokenizer = load_tokenizer(arguments.hf_dir)
    if not 0 <= arguments.val < 1:
        raise Refused(f"--val {arguments.val} is not in [0, 1)")
    os.makedirs(arguments.out, exist_ok=True)
    for name in OUTPUTS:
        path = os.path.join(arguments.out, name)
        if os.path.lexists(path) and not arguments.force:
            raise Refused(f"{path} exists; choose another --out or give --force to replace it")
    vocab_size = tokenizer.get_vocab_size(with_added_tokens=True)
    name, code = token_type(vocab_size)
    tokens = encode_texts(tokenizer, arguments, code)
    train = int(len(tokens) * (1 - arguments.val))
    if train == 0 or (arguments.val > 0 and train == len(tokens)):
        raise Refused(f"{len(tokens)} tokens cannot be split at --val {arguments.val}; "
                      "give more text")
    if sys.byteorder != "little":
        tokens.byteswap()
    of_tokens, of_rules = fingerprint(tokenizer_file(arguments.hf_dir))
    meta = {"dtype": name, "vocab_size": vocab_size,
            "tokenizer": os.path.abspath(arguments.hf_dir),
            "tokenizer_crc32": of_tokens, "tokenizer_rules_crc32": of_rules}
    files = {"train.bin": tokens[:train].tobytes()}
    if arguments.val > 0:
        files["val.bin"] = tokens[train:].tobytes()
    files["meta.json"] = (json.dumps(meta, indent=2, ensure_ascii=False) + "\n").encode()
    publish(arguments.out, files)
    print(json.dumps({"train_tokens": train, "val_tokens": len(tokens) - train, **meta}))


def encode_stdin(arguments):
    text = sys.stdin.buffer.read().decode("utf-8")
    ids = load_tokenizer(arguments.hf_dir).encode(text, add_special_tokens=False).ids
    print(" ".join(map(str, ids)))


def decode_stdin(arguments):
    ids = [int(word) for word in sys.stdin.read().split()]
    text = load_tokenizer(arguments.hf_dir).decode(ids, skip_special_tokens=False)
    sys.stdout.buffer.write(text.encode("utf-8"))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hf_dir", metavar="HF_DIR",
                        help="directory with tokenizer.json, or a run")
    parser.add_argument("texts", metavar="TEXT", nargs="*", help="UTF-8 files, in this order")
    parser.add_argument("--out", metavar="DIR", help="where the token files go")
    parser.add_argument("--val", type=float, default=0.1, metavar="FRACTION",
                        help="last part held out (default 0.1)")
    parser.add_argument("--separator", metavar="TOKEN",
                        help="put this token after each text, for example <|endoftext|>")
    parser.add_argument("--field", metavar="NAME", default="text",
                        help="of .jsonl and .parquet: what holds the text (default: text)")
    parser.add_argument("--force", action="store_true", help="replace existing output")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--encode", action="store_true", help="text on stdin to ids on stdout")
    mode.add_argument("--decode", action="store_true", help="ids on stdin to text on stdout")
    arguments = parser.parse_args()
    if arguments.encode or arguments.decode:
        (encode_stdin if arguments.encode else decode_stdin)(arguments)
    elif not arguments.texts or arguments.out is None:
        parser.error("give at least one TEXT and --out, or --encode or --decode")
    else:
        prepare(arguments)


if __name__ == "__main__":
    try:
        main()
    except Refused as error:
        print(f"spillway_tokenize: {error}", file=sys.stderr)
        sys.exit(2)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        print(f"spillway_tokenize: {error}", file=sys.stderr)
        sys.exit(1)
