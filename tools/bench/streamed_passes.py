"""Times the passes of an offloaded model over a slow link, beside its compute and its copies alone.

usage: streamed_passes.py [--blocks N] [--parameters MIB] [--activations MIB] [--gbps RATE]

The device is a part of host memory behind links of RATE GB/s in each direction, one for parameters
and one for activations. Blocks do not compute: they sleep, as a CPU does while a GPU computes, and
have no gradients. Each pass of a block takes as long as what it has to bring to the device, and the
forward pass no less than what has to leave. Prints one JSON line: the seconds of a forward and a
backward pass, of their compute and of the copies to the device, and the ratio to the longer; also
with a wait for every copy of activations.
"""
import argparse
import json
import statistics
import time
from typing import NamedTuple

import torch

from spillway.torch import OffloadedSGD, _copies, offload_model

PIECES = 4  # storages that a block saves
PASSES = 3


class Sleep(torch.autograd.Function):
    """Saves its input and its weight for backward, and takes its times."""

    @staticmethod
    def forward(ctx, x, weight, forward_seconds, backward_seconds):
        ctx.seconds = backward_seconds
        ctx.save_for_backward(x, weight)
        time.sleep(forward_seconds)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, gradient):
        _ = ctx.saved_tensors
        time.sleep(ctx.seconds)
        return gradient, None, None, None


class Block(torch.nn.Module):
    def __init__(self, case):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(case.parameters // 4))
        self.seconds = [seconds / PIECES for seconds in case.seconds()]

    def forward(self, x):
        for _ in range(PIECES):
            x = Sleep.apply(x, self.weight, *self.seconds)
        return x


class Model(torch.nn.Module):
    def __init__(self, case):
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(1))
        self.blocks = torch.nn.ModuleList(Block(case) for _ in range(case.blocks))

    def forward(self, x):
        x = x + self.first
        for block in self.blocks:
            x = block(x)
        return x


class Case(NamedTuple):
    blocks: int
    parameters: int   # bytes of a block
    activations: int  # bytes that it saves
    gbps: float

    def seconds(self):
        """Of the passes of a block."""
        second = self.gbps * 1e9
        return (max(self.parameters, self.activations) / second,
                (self.parameters + self.activations) / second)

    def seconds_to_device(self):
        return self.blocks * (2 * self.parameters + self.activations) / (self.gbps * 1e9)


def passes(case, streams):
    """The median seconds of a forward and a backward pass."""
    model = optimizer = Model(case)
    if streams:
        offload_model(model, 4 * case.parameters + (1 << 20),
                      activation_memory=2 * case.blocks * case.activations,
                      host_link_gbps=case.gbps)
        optimizer = OffloadedSGD(model.parameters(), lr=0.0)
    x = torch.zeros(case.activations // PIECES // 4)
    times = []
    for _ in range(PASSES + 1):
        start = time.perf_counter()
        model(x).backward(torch.ones_like(x))
        times.append(time.perf_counter() - start)
        optimizer.zero_grad()
    return statistics.median(times[1:])


def wait_for_each():
    """Makes copies what they are without a window: a part of the passes."""
    start = _copies.Lane.start

    def start_and_wait(lane, *ends, **watched):
        copy = start(lane, *ends, **watched)
        copy.started.wait()
        return copy

    _copies.Lane.start = start_and_wait


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--parameters", type=int, default=16, help="MiB of a block")
    parser.add_argument("--activations", type=int, default=16, help="MiB that a block saves")
    parser.add_argument("--gbps", type=float, default=0.5)
    options = parser.parse_args()
    case = Case(options.blocks, options.parameters << 20, options.activations << 20, options.gbps)
    compute, copies = passes(case, streams=False), case.seconds_to_device()
    streamed = passes(case, streams=True)
    wait_for_each()
    waiting = passes(case, streams=True)
    print(json.dumps({"compute": compute, "copies": copies, "streamed": streamed,
                      "ratio": streamed / max(compute, copies), "waiting": waiting,
                      "faster": waiting / streamed}))


main()
