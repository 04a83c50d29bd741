"""The scene that run_identity's cases play in, and what they expect of it."""
import contextlib
import hashlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import time

MODEL = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256,
         "n_positions": 16, "n_embd": 48, "n_layer": 2, "n_head": 2,
         "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.0,
         "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": True}
# Of the disk, a start measures as much as fits into this memory.
CONFIG = {"train_micro_batch_size_per_gpu": 4,
          "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
          "spillway": {"context": 16, "seed": 3, "tile_parameters": 8192, "commit_every": 1,
                       "device_memory": "4MiB", "host_memory": "4MiB"}}
STEPS = 12
ENDLESS = 100000
CASES = []


def case(function):
    CASES.append(function)
    return function


class Answer:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __str__(self):
        return f"exit {self.code}\n{self.out}\n{self.err}"


class Scene:
    """A directory with a text, a model and a configuration, in which one case plays."""

    def __init__(self, program, root):
        self.program, self.root = program, root
        self.write("model.json", MODEL)
        self.configure()
        rng = random.Random(1)
        self.tokens("data/train.bin", [i * 7 % 61 if rng.random() < 0.8 else rng.randrange(256)
                                       for i in range(6000)])
        self.tokens("data/val.bin", [i * 7 % 61 for i in range(400)])
        self.write("data/meta.json", {"dtype": "uint16", "vocab_size": 256, "tokenizer": "bytes"})

    def path(self, name):
        return self.root / name

    def write(self, name, document):
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(json.dumps(document))

    def configure(self, **section):
        self.write("train.json", CONFIG | {"spillway": CONFIG["spillway"] | section})

    def tokens(self, name, values):
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_bytes(b"".join(value.to_bytes(2, "little") for value in values))

    def drive(self, name):
        self.path(name).mkdir()
        return self.path(name)

    def start(self, *arguments):
        return subprocess.Popen([self.program, *map(str, arguments)], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, cwd=self.root, text=True,
                                env=os.environ | {"XDG_CACHE_HOME": str(self.root / "cache")})

    def run(self, *arguments):
        process = self.start(*arguments)
        out, err = process.communicate(timeout=300)
        return Answer(process.returncode, out, err)

    def train_arguments(self, run, steps=STEPS, *more):
        return ["train", "train.json", "--model", "model.json", "--data", "data", "--run", run,
                "--steps", steps, *more]

    def train(self, run, steps=STEPS, *more):
        return self.run(*self.train_arguments(run, steps, *more))

    def trained(self, run, steps=STEPS, *more):
        answer = self.train(run, steps, *more)
        assert answer.code == 0, answer
        return answer

    @contextlib.contextmanager
    def live(self, run, *more, lines=3):
        """A run that trains, past its first commits."""
        process = self.start(*self.train_arguments(run, ENDLESS, *more))
        try:
            self.wait_for_lines(run, lines, process)
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def wait_for_lines(self, run, lines, process):
        metrics = self.path(run) / "metrics.jsonl"
        deadline = time.monotonic() + 120
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < lines:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "the run does not get on"
            time.sleep(0.002)

    def metrics(self, run):
        """Lines without what may differ between equal runs."""
        lines = (self.path(run) / "metrics.jsonl").read_text().splitlines()
        entries = [json.loads(line) for line in lines]
        return [{key: value for key, value in entry.items() if key not in ("seconds", "exposed")}
                for entry in entries]

    def weights(self, run):
        out = self.path(f"weights-{random.randrange(1 << 60)}")
        answer = self.run("export", run, out)
        assert answer.code == 0, answer
        digest = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
        shutil.rmtree(out)
        return digest

    def manifest(self, run):
        return json.loads((self.path(run) / "manifest.json").read_text())

    def state(self, run):
        """The folder that holds the first swap file."""
        return self.path(run) / self.manifest(run)["state"][0]

    def step(self, run):
        return json.loads(self.run("info", run, "--json").out)["step"]


def snapshot(*roots):
    """Every file below the directories, by content. The lock is not the run's."""
    content = {}
    for root in roots:
        for path in sorted(pathlib.Path(root).rglob("*")):
            if path.name == "lock":
                continue
            content[str(path)] = (hashlib.sha256(path.read_bytes()).hexdigest()
                                  if path.is_file() else "directory")
    return content


@contextlib.contextmanager
def unchanged(*roots):
    before = snapshot(*roots)
    yield
    after = snapshot(*roots)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert not changed, f"changed: {sorted(changed)}"


def expect_refused(answer, code, *words):
    assert answer.code == code, f"expected exit {code}: {answer}"
    for word in words:
        assert str(word) in answer.err, f"'{word}' is not in: {answer.err}"


def expect_equal_runs(scene, run, whole):
    assert scene.metrics(run) == scene.metrics(whole), "the metrics differ"
    assert scene.weights(run) == scene.weights(whole), "the weights differ"


def expect_resumed(scene, run, whole):
    """As `whole`, but for the evaluation at the end of the first part."""
    assert len(scene.metrics(run)) == len(scene.metrics(whole))
    for ours, theirs in zip(scene.metrics(run), scene.metrics(whole)):
        ours.pop("val_loss", None), theirs.pop("val_loss", None)
        assert ours == theirs, (ours, theirs)
    assert scene.weights(run) == scene.weights(whole), "the weights differ"
