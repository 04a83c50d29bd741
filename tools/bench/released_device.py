"""Times how long a model's device takes to be released and resumed, by what lies there.

usage: released_device.py [--mebibytes MIB] [--rounds N]

The device is a part of host memory. MIB of it have parameters that stay there, frozen tensors that
stay there, or slots through which blocks pass: a model for each of the three, and a forward pass
before each round, so that all pages are there. Checks that the bits come back. Prints one JSON
line: the median seconds of `release_device` and `resume_device` for a gigabyte of each, and of the
first forward pass after it beyond that of others, which finds new pages.
"""
import argparse
import json
import statistics
import time

import torch

from spillway.torch import OffloadedSGD, offload_model

BLOCKS = 4
SLOTS = 2         # for blocks
LEAST = 2 << 20   # elements of a block, as many as a tile of state has


class Weight(torch.nn.Module):
    def __init__(self, elements):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(elements, dtype=torch.float32))

    def forward(self, x):
        return x + self.weight[-1]


class Model(torch.nn.Module):
    """Has `stays` elements that stay on the device, and blocks of `passes` elements each."""

    def __init__(self, stays, passes):
        super().__init__()
        self.first = Weight(stays)
        self.blocks = torch.nn.ModuleList(Weight(passes) for _ in range(BLOCKS))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(kind, size, rounds):
    """Median seconds of a release, a resume, and the pass after them beyond others."""
    elements = size // 4
    model = Model(stays=1 if kind == "slots" else elements,
                  passes=elements // SLOTS if kind == "slots" else LEAST)
    if kind == "frozen":
        model.first.requires_grad_(False)
    slots = 0 if kind == "slots" else 4 * LEAST * SLOTS
    offload_model(model, size + slots + (1 << 20))
    optimizer = OffloadedSGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
    x = torch.zeros(1)
    expected = [parameter.detach().clone() for parameter in model.parameters()]
    times = []
    for _ in range(rounds):
        with torch.no_grad():
            usual = min(seconds(lambda: model(x)) for _ in range(2))
            times.append([seconds(optimizer.release_device), seconds(optimizer.resume_device),
                          seconds(lambda: model(x)) - usual])
    for parameter, values in zip(model.parameters(), expected, strict=True):
        assert torch.equal(parameter, values), "the bits have changed"
    optimizer.close()
    return [statistics.median(column) for column in zip(*times, strict=True)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    size = options.mebibytes << 20
    result = {"gigabytes": size / 1e9}
    for kind in ("parameters", "frozen", "slots"):
        times = measure(kind, size, options.rounds)
        result[kind] = {f"{name}_seconds_per_gb": value / (size / 1e9)
                        for name, value in zip(("release", "resume", "next_pass"), times,
                                               strict=True)}
    print(json.dumps(result))


main()
