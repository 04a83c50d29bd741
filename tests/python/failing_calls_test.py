"""Every call of the package for PyTorch, with every allocation of its library and every call on
files failing: what fails says so, and can be tried again, or is refused until the optimizer is made
again. What has worked in the end has the bits of a run without a fault. So have runs of the native
engine, of which calls on files fail here; failing_runs_test.py has their allocations."""
import contextlib
import ctypes
import errno
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import pytest
import torch
from block_model import BlockModel

import spillway
from spillway.torch import OffloadedAdamW, offload_model

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
from program_folder import MODEL, TEXT

FAULTS = {"files": True, "allocations": False}
NEVER = 1 << 62
calls = ctypes.CDLL(None)  # with LD_PRELOAD=libspillway_failing_calls.so, as CTest sets it
SEED = int(os.environ.get("SPILLWAY_TEST_SEED", random.randrange(1 << 31)))


class Fault:
    """Makes the call of a sort fail that comes after so many."""

    def __init__(self, which, successes):
        self.on_files, self.successes = FAULTS[which], successes
        calls.spillway_test_left.restype = ctypes.c_int64
        calls.spillway_test_fail(self.on_files, ctypes.c_int64(successes))

    @contextlib.contextmanager
    def watched(self):
        calls.spillway_test_watch(self.on_files, True)
        try:
            yield
        finally:
            calls.spillway_test_watch(self.on_files, False)

    def count(self):
        """The calls so far, the one that failed included."""
        return self.successes - calls.spillway_test_left(self.on_files)

    def has_come(self):
        return self.count() > self.successes

    def check(self, name, error):
        """Fails unless the error is one that names the fault."""
        if self.on_files:
            assert isinstance(error, OSError) and error.errno == errno.EIO, (name, repr(error))
        else:
            assert isinstance(error, MemoryError), (name, repr(error))
        assert str(error), name


class Tiled(OffloadedAdamW):
    """Cuts state into the smallest tiles, so that disks move several."""

    def _trainer_options(self, dtype):
        options = super()._trainer_options(dtype)
        options.tile_parameters = 4096
        return options


class Refused(Exception):
    """A call has failed, and once more."""


class Scenario:
    """Calls of which one may fail."""

    def __init__(self, fault, folder):
        self.fault, self.folder = fault, folder
        self.optimizer = None
        self.refused = False
        self.failed = []  # calls
        self.counts = []  # of what can fail in each call that has not failed

    def call(self, name, function):
        """Makes a call that may fail once, and another time if it has."""
        for attempt in range(2):
            before = self.fault.count()
            try:
                with self.fault.watched():
                    result = function()
                self.counts.append((before, self.fault.count()))
                return result
            except (spillway.Error, MemoryError, OSError) as error:
                assert self.fault.has_come(), (name, repr(error))
                if attempt == 0:
                    self.fault.check(name, error)
                self.failed.append(f"{name}: {error!r}")
        raise Refused(self.failed)

    def keep_state(self):
        """Saves and loads in both ways."""
        checkpoint = self.folder / "checkpoint"
        self.call("save", lambda: self.optimizer.save(checkpoint))
        self.call("load", lambda: self.optimizer.load(checkpoint))
        state = self.call("state_dict", self.optimizer.state_dict)
        self.call("load_state_dict", lambda: self.optimizer.load_state_dict(state))

    def numbers(self):
        """All that training has made."""
        state = self.optimizer.state_dict()["state"]
        return [parameter.detach().clone() for parameter in self.parameters] + [
            state[number][key] for number in sorted(state) for key in sorted(state[number])]

    def run(self):
        """Returns the numbers at the end. If a call was refused, they are those of an optimizer
        that is made again, with the same parameters and in the same folder."""
        start = [parameter.detach().clone() for parameter in self.parameters]
        try:
            numbers = self.train_all()
        except Refused:
            self.refused = True
            if self.optimizer is not None:
                with contextlib.suppress(spillway.Error):  # of an update that it cannot apply
                    self.optimizer.close()
            with torch.no_grad():
                for parameter, value in zip(self.parameters, start, strict=True):
                    parameter.copy_(value)
            numbers = self.train_all()
        self.call("close", self.optimizer.close)
        return numbers

    def train_all(self):
        self.make()
        for step in range(2):
            self.train(step)
        self.keep()
        self.train(2)
        self.call("synchronize", self.optimizer.synchronize)
        return self.numbers()


class Optimizer(Scenario):
    """Two element types, of which one joins late too, and accumulated gradients."""

    def __init__(self, fault, folder, on_disk):
        super().__init__(fault, folder)
        generator = torch.Generator().manual_seed(3)
        self.parameters = [
            torch.nn.Parameter(torch.randn(elements, generator=generator).to(dtype))
            for elements, dtype in ((6, torch.bfloat16), (9000, torch.float32),
                                    (6, torch.float32), (6, torch.float32))]
        self.nvme = folder if on_disk else ()

    def make(self):
        self.used = 3

        def make():
            self.optimizer = Tiled(self.parameters[:3], lr=1e-2, max_norm=1.0,
                                   accumulation_steps=None, nvme=self.nvme, threads=1)
        self.call("make", make)

    def loss(self, number):
        return sum((parameter.float() * (number + place + 1)).sin().sum()
                   for place, parameter in enumerate(self.parameters[:self.used]))

    def train(self, step):
        def backward():
            self.optimizer.zero_grad()
            for micro in range(2):
                self.loss(2 * step + micro).backward()

        self.call("backward", backward)
        if step == 1:
            self.call("clip_grad_norm_", lambda: self.optimizer.clip_grad_norm_(0.5))
        self.call("step", self.optimizer.step)

    def keep(self):
        self.keep_state()
        with torch.no_grad():
            self.parameters[0].mul_(2)
        self.call("values_changed", lambda: self.optimizer.values_changed(self.parameters[0]))
        late = {"params": self.parameters[3:], "lr": 1e-3}
        if len(self.optimizer.param_groups) == 1:
            self.call("add_param_group", lambda: self.optimizer.add_param_group(late))
        self.used = 4


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = torch.nn.Linear(width, width)
        self.outer = torch.nn.Linear(width, width)

    def forward(self, x):
        return x + self.outer(torch.tanh(self.inner(x)))


class Streamed(Scenario):
    """A model whose blocks pass through a part of the device's memory, and deferred updates."""

    def __init__(self, fault, folder, on_disk):
        super().__init__(fault, folder)
        torch.manual_seed(1)
        self.model = BlockModel(Block, 4, 64)
        self.parameters = list(self.model.parameters())
        self.nvme = folder if on_disk else ()

    def make(self):
        if self.optimizer is None:
            self.call("offload_model", lambda: offload_model(self.model, "200KB"))

        def make():
            self.optimizer = Tiled(self.parameters, lr=1e-2, nvme=self.nvme, threads=1,
                                   deferred=self.model)

        self.call("make", make)

    def train(self, step):
        batch = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))

        def backward():
            self.optimizer.zero_grad()
            self.model(batch).square().sum().backward()

        self.call("backward", backward)
        self.call("step", self.optimizer.step)

    def keep(self):
        with torch.no_grad():
            self.call("evaluation", lambda: self.model(torch.ones(5, 4)))
        self.call("synchronize", self.optimizer.synchronize)
        self.keep_state()


class Engine(Scenario):
    """The engine of `initialize`, whose checkpoints have the model too."""

    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1,
              "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}}

    def __init__(self, fault, folder):
        super().__init__(fault, folder)
        torch.manual_seed(1)
        self.model = torch.nn.Linear(4, 4)
        self.parameters = list(self.model.parameters())

    def make(self):
        def make():
            self.engine = spillway.torch.initialize(model=self.model, config=self.config)[0]

        self.call("initialize", make)
        self.optimizer = self.engine.optimizer

    def train(self, step):
        batch = torch.randn(2, 4, generator=torch.Generator().manual_seed(step))

        def backward():
            self.engine.zero_grad()
            self.engine.backward(self.engine(batch).square().sum())

        self.call("backward", backward)
        self.call("step", self.engine.step)

    def keep(self):
        for tag in ("first", "first"):
            self.call("save_checkpoint", lambda tag=tag: self.engine.save_checkpoint(
                self.folder / "kept", tag, client_state={"batch": 2}))
        path, state = self.call("load_checkpoint", lambda: self.engine.load_checkpoint(
            self.folder / "kept"))
        assert path.endswith("first")
        assert state == {"batch": 2}


class Run(Scenario):
    """The native engine: a plan, a run that goes on where it has ended, and its export."""

    config = {"train_micro_batch_size_per_gpu": 4,
              "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
              "spillway": {"context": 16, "seed": 3, "tile_parameters": 8192, "compute_threads": 1,
                           "save_every": 2, "keep": 1}}

    def __init__(self, fault, folder, data):
        super().__init__(fault, folder)
        self.data = data
        (folder / "disk").mkdir()

    def run(self):
        run, out = self.folder / "run", self.folder / "out"
        self.call("plan", lambda: spillway.plan(self.config, model=MODEL, run=self.folder))
        for steps in (3, 5):
            self.call("train", lambda steps=steps: spillway.train(
                self.config, model=MODEL, data=self.data, run=run, nvme=self.folder / "disk",
                steps=steps, resume=True, progress=False))
        self.call("export", lambda: spillway.export(run, out))
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        weights = bytearray((out / "model.safetensors").read_bytes())
        return [torch.tensor([line["loss"] for line in lines]),
                torch.frombuffer(weights, dtype=torch.uint8)]


def turns_of(counts, most):
    """Numbers of calls that are to fail: so many in each call of the package, evenly; or all."""
    drawn = random.Random(SEED)
    for first, end in counts:
        step = 1 if "SPILLWAY_TEST_ALL_CALLS" in os.environ else max((end - first) / most, 1)
        at = first + drawn.random() * step
        while at < end:
            yield int(at)
            at += step


def fail_in_turn(scenario, which, most, tmp_path, **options):
    """Lets calls of a sort fail, each in a run of its own."""
    def outcome(successes):
        folder = pathlib.Path(tempfile.mkdtemp(dir=tmp_path))
        fault = Fault(which, successes)
        one = scenario(fault, folder, **options)
        return one.run(), one, fault.has_come()

    outcome(NEVER)  # makes the calls of a process's first run
    undisturbed, whole, came = outcome(NEVER)
    assert not came
    faults = refused = 0
    for successes in turns_of(whole.counts, most):
        numbers, one, came = outcome(successes)
        faults += came
        refused += one.refused
        for mine, other in zip(numbers, undisturbed, strict=True):
            assert torch.equal(mine, other), (SEED, successes, one.failed)
    print(f"{scenario.__name__}, {which}: {faults} faults, {refused} refused")
    assert faults > 5


@pytest.mark.parametrize("scenario", [Optimizer, Streamed])
@pytest.mark.parametrize("on_disk", [False, True])
def test_calls_on_files(tmp_path, scenario, on_disk):
    fail_in_turn(scenario, "files", 4, tmp_path, on_disk=on_disk)


@pytest.mark.parametrize("scenario", [Optimizer, Streamed])
@pytest.mark.parametrize("on_disk", [False, True])
def test_allocations(tmp_path, scenario, on_disk):
    fail_in_turn(scenario, "allocations", 4, tmp_path, on_disk=on_disk)


def test_the_engine(tmp_path):
    fail_in_turn(Engine, "files", 12, tmp_path)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of what a run does without
def test_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(TEXT)
    subprocess.run([os.environ["SPILLWAY_PROGRAM"], "data", tmp_path / "text.txt", "--out",
                    tmp_path / "data", "--tokenizer", "bytes"], check=True)
    fail_in_turn(Run, "files", 10, tmp_path, data=tmp_path / "data")


def test_an_update_that_close_cannot_apply_is_told(tmp_path):
    def closed(successes):
        torch.manual_seed(1)
        model = torch.nn.Linear(90, 100, bias=False)
        optimizer = Tiled(model.parameters(), lr=1e-2, threads=1, deferred=model,
                          nvme=tempfile.mkdtemp(dir=tmp_path))
        model(torch.ones(90)).square().sum().backward()
        fault, told = Fault("files", successes), False
        try:
            with fault.watched():
                optimizer.step()
                optimizer.close()
        except OSError as error:
            fault.check("step or close", error)
            told = True
        return model.weight.detach().clone(), told, fault.has_come()

    undisturbed, _, _ = closed(NEVER)
    tellings = 0
    for successes in range(1000):
        weight, told, came = closed(successes)
        if not came:
            break
        tellings += told
        assert told or torch.equal(weight, undisturbed), successes
    assert tellings > 0
