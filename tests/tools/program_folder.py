"""A folder in which the program trains tiny models, and what its runs leave there."""
import hashlib
import json
import pathlib
import shlex
import shutil
import subprocess
import time

# Long enough for a sanitizer's build on a busy machine; whoever waits for a pipe waits for ever.
SECONDS = 240

TEXT = "".join(f"Blessed are they that mourn, for line {i * i % 97}.\n" for i in range(400))
MODEL = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256,
    "n_positions": 16, "n_embd": 48, "n_layer": 2, "n_head": 2,
    "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.0,
    "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": True}
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256,
    "max_position_embeddings": 32, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
    "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False}


class ProgramFolder:
    program = folder = None
    environment = None  # of the program; none: ours
    told = ""           # the last command, and what it said

    def path(self, name) -> pathlib.Path:
        return self.folder / name

    def write(self, name, text) -> pathlib.Path:
        """Writes a text, or a document as JSON."""
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        return path

    def drive(self, name) -> pathlib.Path:
        """Makes an empty directory, as a mounted drive is."""
        self.path(name).mkdir()
        return self.path(name)

    def run_program(self, *arguments, before=(), **options) -> subprocess.CompletedProcess:
        """Runs the program, by the command `before` it if there is one."""
        command = [*map(str, before), str(self.program), *map(str, arguments)]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": SECONDS,
                   "env": self.environment} | options
        done = subprocess.run(command, cwd=self.folder, check=False, encoding="utf-8",
                              errors="surrogateescape", **options)
        self.told = (f"$ {shlex.join(command)}\n{done.stdout or ''}{done.stderr or ''}"
                     f"exit code {done.returncode}")
        return done

    def succeed(self, *arguments, **options) -> subprocess.CompletedProcess:
        done = self.run_program(*arguments, **options)
        assert done.returncode == 0, self.told
        return done

    def document(self, *arguments, **options) -> dict:
        return json.loads(self.succeed(*arguments, "--json", **options).stdout)

    def start(self, *arguments, **options) -> subprocess.Popen:
        """Starts the program; what it says goes into output.txt."""
        with self.path("output.txt").open("w") as output:
            options = {"stdout": output, "stderr": output, "env": self.environment} | options
            return subprocess.Popen([str(self.program), *map(str, arguments)], cwd=self.folder,
                                    **options)

    def wait_for_steps(self, child, run, steps):
        """Waits until the run of a program that trains has so many steps."""
        deadline = time.monotonic() + SECONDS
        while self.steps_of(run) < steps:
            ended, late = child.poll() is not None, time.monotonic() > deadline
            assert not ended and not late, (
                f"$ {shlex.join(child.args)}\n{self.path('output.txt').read_text()}"
                f"it {'has ended' if ended else 'is'} at step {self.steps_of(run)}")
            time.sleep(0.002)

    def wait_in_start(self, run, before, seconds):
        """Waits so long, but not once the run has more steps than `before` its start."""
        until = time.monotonic() + seconds
        while self.steps_of(run) == before and time.monotonic() < until:
            time.sleep(0.001)

    def steps_of(self, run) -> int:
        path = self.path(run) / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def metrics(self, run) -> list:
        """The whole lines of metrics.jsonl."""
        if self.steps_of(run) == 0:
            return []
        lines = (self.path(run) / "metrics.jsonl").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def results(self, run) -> list:
        """The metrics without what may differ between equal runs."""
        differing = ("seconds", "exposed", "ahead")
        return [{key: value for key, value in line.items() if key not in differing}
                for line in self.metrics(run)]

    def weights(self, run) -> str:
        """A digest of the weights that a run exports."""
        out = self.path("exported")
        self.succeed("export", run, out)
        digest = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
        shutil.rmtree(out)
        return digest
