"""Times the passes of an offloaded model over a slow link, beside its compute and its copies alone.

usage: streamed_passes.py [--blocks N] [--gbps RATE] [--passes N]

The device is a part of host memory behind a link of RATE GB/s in each direction. Blocks do not
compute: they sleep, as a CPU does while a GPU computes, and have no gradients. Their forward pass
takes as long as their parameters come in and their activations leave, and their backward pass twice
as long. Prints one JSON line: the seconds of a forward and a backward pass, of their compute and of
the copies one after the other, and the ratio to the longer; also with a wait for every copy.
"""
import argparse
import json
import statistics
import time

import torch

from spillway.torch import OffloadedSGD, _copies, offload_model

PARAMETERS = 16 << 20  # bytes of a block
PIECES = 4             # storages that a block saves, as many bytes together


class Sleep(torch.autograd.Function):
    """Saves its input and its weight for backward, and takes its time."""

    @staticmethod
    def forward(ctx, x, weight, seconds):
        ctx.seconds = seconds
        ctx.save_for_backward(x, weight)
        time.sleep(seconds)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, gradient):
        _ = ctx.saved_tensors
        time.sleep(2 * ctx.seconds)
        return gradient, None, None


class Block(torch.nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(PARAMETERS // 4))
        self.seconds = seconds / PIECES

    def forward(self, x):
        for _ in range(PIECES):
            x = Sleep.apply(x, self.weight, self.seconds)
        return x


class Model(torch.nn.Module):
    def __init__(self, blocks, seconds):
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(1))
        self.blocks = torch.nn.ModuleList(Block(seconds) for _ in range(blocks))

    def forward(self, x):
        x = x + self.first
        for block in self.blocks:
            x = block(x)
        return x


def passes(blocks, seconds, count, gbps):
    """The median seconds of a forward and a backward pass."""
    model = Model(blocks, seconds)
    if gbps:
        offload_model(model, 4 * PARAMETERS, activation_memory=2 * blocks * PARAMETERS,
                      host_link_gbps=gbps)
    optimizer = OffloadedSGD(model.parameters(), lr=0.0) if gbps else model
    x = torch.zeros(PARAMETERS // PIECES // 4)
    times = []
    for _ in range(count + 1):
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
    parser.add_argument("--gbps", type=float, default=1.0)
    parser.add_argument("--passes", type=int, default=3)
    options = parser.parse_args()
    seconds = PARAMETERS / options.gbps / 1e9
    compute = passes(options.blocks, seconds, options.passes, None)
    # Parameters and activations share the way to the device.
    copies = options.blocks * 3 * seconds
    streamed = passes(options.blocks, seconds, options.passes, options.gbps)
    wait_for_each()
    serial = passes(options.blocks, seconds, options.passes, options.gbps)
    print(json.dumps({"compute": compute, "copies": copies, "streamed": streamed,
                      "ratio": streamed / max(compute, copies), "waiting": serial,
                      "faster": serial / streamed}))


main()
