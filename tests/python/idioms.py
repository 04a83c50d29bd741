"""What the tables of idioms share: a small model, and runs with torch's optimizers and with ours.

An idiom is a few lines of a training loop as public tutorials and libraries write them. It is run
once with torch.optim and once in each setting with ours. Both must give the same values, or ours
must raise the error whose words are in the table: nothing may differ silently.
"""
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn import functional

import spillway.torch as offloaded

SETTINGS = ("memory", "disk", "deferred", "streamed")
RESIDENT = SETTINGS[:3]
# Few steps with a rate of 1e-2: an update of Adam carries roundings of fp32 on, and 1e-5 is 0.1 %
# of the first one. It is the bound of torch_calls_test.py.
BOUND = 1e-5


class Idiom(NamedTuple):
    """A row of a table."""

    use: Callable[["Run"], Any]
    settings: tuple[str, ...]
    refused: dict[str, tuple[type[Exception], str]]  #: by setting: the error and its words
    bound: float


class Table:
    """Idioms in the order in which they are written down."""

    def __init__(self) -> None:
        self.rows: list[Idiom] = []

    def idiom(self, settings=SETTINGS, refused=None, where=None, bound=BOUND):
        """Adds a function. `refused` is an error and its words, in the settings `where` or all."""
        def add(use):
            refusals = dict.fromkeys(where or settings, refused) if refused else {}
            self.rows.append(Idiom(use, settings, refusals, bound))
            return use
        return add

    def over_all(self):
        """Parametrizes a test with each idiom in each of its settings."""
        return pytest.mark.parametrize(("row", "setting"), [
            pytest.param(row, setting, id=f"{row.use.__name__}-{setting}")
            for row in self.rows for setting in row.settings])


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.linear(self.norm(x)))


class Net(torch.nn.Module):
    """Blocks that can be streamed, and a layer before and behind them that cannot."""

    def __init__(self, blocks=3, width=8):
        super().__init__()
        self.first = torch.nn.Linear(6, width)
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = torch.nn.Linear(width, 4)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Run:
    """One run of an idiom: with torch's optimizers, or with ours in one of the settings."""

    def __init__(self, setting, folder):
        self.setting, self.folder = setting, folder
        self.is_ours = setting is not None

    def place(self, net):
        """Streams a model where the setting has that."""
        if self.is_ours and "streamed" in self.setting:
            offloaded.offload_model(net, "300KB")
        return net

    def net(self, kind=Net, seed=0):
        torch.manual_seed(seed)
        return self.place(kind())

    def make(self, net, params=None, kind="AdamW", lr=1e-2, **arguments):
        """An optimizer of a model, or of those of its parameters that are given."""
        params = net.parameters() if params is None else params
        if not self.is_ours:
            return getattr(torch.optim, kind)(params, lr=lr, **arguments)
        if "disk" in self.setting:
            arguments["nvme"] = [self.folder]
        if "deferred" in self.setting:
            arguments["deferred"] = net
        if "streamed" in self.setting:  # whose backward passes must be announced
            arguments["accumulation_steps"] = None
        return getattr(offloaded, "Offloaded" + kind)(params, lr=lr, **arguments)

    def net_and_optimizer(self, **arguments):
        net = self.net()
        return net, self.make(net, **arguments)


def batch(step):
    """An input and its target."""
    generator = torch.Generator().manual_seed(step)
    return (torch.randn(5, 6, generator=generator), torch.randn(5, 4, generator=generator))


def loss_of(net, step):
    x, target = batch(step)
    return functional.mse_loss(net(x).float(), target)


def train(net, optimizer, steps=2, first=0):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(net, step).backward()
        optimizer.step()


def flat(values):
    """Copies of all tensors and numbers in what an idiom returns, of models' entries too."""
    if isinstance(values, torch.nn.Module):
        values = [p.clone() for p in values.parameters()] + list(values.buffers())
    if isinstance(values, torch.Tensor):
        return [values.detach().clone().double()]
    if isinstance(values, dict):
        return [each for key in sorted(values, key=str) for each in flat(values[key])]
    if isinstance(values, (list, tuple)):
        return [each for value in values for each in flat(value)]
    if isinstance(values, (bool, int, float)):
        return [torch.tensor(float(values), dtype=torch.float64)]
    assert values is None or isinstance(values, str), type(values)
    return []


def check(row, setting, folder):
    """Compares the run with torch's in values, or with the error that it is to raise."""
    random = torch.random.get_rng_state()
    if setting in row.refused:
        kind, words = row.refused[setting]
        with pytest.raises(kind, match=words):
            row.use(Run(setting, folder))
        return
    theirs = flat(row.use(Run(None, folder)))
    torch.random.set_rng_state(random)
    ours = flat(row.use(Run(setting, folder)))
    assert theirs, "nothing is compared"
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, rtol=row.bound, atol=row.bound)




def stepping(run, between=None, steps=3, loss=loss_of, **arguments):
    """The usual loop, with something between the backward pass and the update."""
    net, optimizer = run.net_and_optimizer(**arguments)
    noted = []
    for step in range(steps):
        optimizer.zero_grad()
        loss(net, step).backward()
        if between is not None:
            noted.append(between(net, optimizer))
        optimizer.step()
    return net, noted


class Batches(torch.utils.data.Dataset):
    """Rows of batches, with the names that a Trainer of transformers wants."""

    def __len__(self):
        return 16

    def __getitem__(self, number):
        x, target = batch(number)
        return {"x": x[0], "labels": target[0]}
