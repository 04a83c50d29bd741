"""Compares 100 optimizer steps with torch.optim, elementwise.

usage: adam_torch_test.py ADAM_PEER
The reference is torch in fp64. The bound adds up that of one step: an error of at most
4 * 2^-23 * (|p| + step size * moment scale / denominator) each, where |update| <= 10 lr here.
The bound is loose, as roundings seldom agree; so we also ask for at most three times the error that
torch makes in fp32, where it rounds in other places.
"""
import struct
import subprocess
import sys

import numpy
import torch

COUNT, STEPS = 20_011, 100
LR, BETAS, EPS = 3e-3, (0.9, 0.99), 1e-8


def spillway_steps(program, decay, l2, start, gradients):
    header = struct.pack("=3I5d", COUNT, STEPS, int(l2), LR, *BETAS, EPS, decay)
    done = subprocess.run([program], input=header + start.tobytes() + gradients.tobytes(),
                          stdout=subprocess.PIPE, check=True)
    return numpy.frombuffer(done.stdout, numpy.float32).reshape(3, COUNT).astype(numpy.float64)


def torch_steps(decay, l2, start, gradients, dtype):
    parameter = torch.nn.Parameter(torch.tensor(start, dtype=dtype))
    kind = torch.optim.Adam if l2 else torch.optim.AdamW
    optimizer = kind([parameter], lr=LR, betas=BETAS, eps=EPS, weight_decay=decay, foreach=False)
    largest = parameter.detach().abs()
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient, dtype=dtype)
        optimizer.step()
        largest = torch.maximum(largest, parameter.detach().abs())
    state = optimizer.state[parameter]
    tensors = (parameter.detach(), state["exp_avg"], state["exp_avg_sq"])
    arrays = [tensor.numpy().astype(numpy.float64) for tensor in tensors]
    return numpy.stack(arrays), largest.numpy()


def compare(program, name, decay, l2):
    random = numpy.random.default_rng(20)
    scales = 10.0 ** random.uniform(-4, 1, COUNT)
    start = random.normal(size=COUNT).astype(numpy.float32)
    gradients = (random.normal(size=(STEPS, COUNT)) * scales).astype(numpy.float32)
    exact, largest = torch_steps(decay, l2, start, gradients, torch.float64)
    single, _ = torch_steps(decay, l2, start, gradients, torch.float32)
    ours = spillway_steps(program, decay, l2, start, gradients)
    bounds = numpy.stack([
        STEPS * 4 * 2.0**-23 * (largest + 10 * LR),
        # A moment forgets: its error is that of the last 1 / (1 - beta) steps, 2 * 2^-23 each, of
        # the largest gradient that it can hold.
        20 * 2.0**-23 * numpy.abs(gradients + (decay * largest if l2 else 0)).max(axis=0),
        200 * 2.0**-23 * exact[2],
    ])
    good = True
    for row, what in enumerate(("master", "m", "v")):
        share = numpy.abs(ours[row] - exact[row]) / bounds[row]
        torch_share = numpy.abs(single[row] - exact[row]) / bounds[row]
        print(f"{name} {what}: largest error {share.max():.4f} of its bound "
              f"(torch in fp32: {torch_share.max():.4f})")
        good = good and bool((share <= 1).all()) and share.max() <= 3 * torch_share.max()
    return good


def main():
    program = sys.argv[1]
    results = [compare(program, "AdamW", 0.1, False), compare(program, "Adam with L2", 0.01, True),
               compare(program, "AdamW without decay", 0.0, False)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
