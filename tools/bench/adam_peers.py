"""Other CPU implementations of AdamW, one timed repetition a request, for `spillway bench adam`.

usage: adam_peers.py --peers torch,deepspeed --size PARAMETERS --threads N [--gradient bf16|fp16]

Prints a JSON line when ready, then one for each line read: nanoseconds a parameter by variant.
A chain is what surrounds the kernel in a training step on 16-bit parameters: torch's widens the
16-bit gradient, unscales it, updates and casts to 16-bit parameters; DeepSpeed's host chain starts
from gradients that are fp32 already, `_widen` adds the widening.
"""
import argparse
import json
import os
import sys
import time

SCALE = 0.5


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--gradient", choices=["bf16", "fp16"], default="bf16")
    return parser.parse_args()


def torch_variants(torch, arrays):
    optimizers = {name: torch.optim.AdamW([arrays["master"]], lr=1e-3, weight_decay=0.01,
                                          **{name: True}) for name in ("fused", "foreach")}
    # foreach takes ten times as long and brings temporaries: measured on a part of the array.
    part = torch.nn.Parameter(arrays["master"].detach()[:1 << 24].clone())
    part.grad = arrays["master"].grad[:1 << 24].clone()
    optimizers["foreach"] = torch.optim.AdamW([part], lr=1e-3, weight_decay=0.01, foreach=True)

    def chain():
        widen(arrays)
        arrays["master"].grad.mul_(SCALE)
        optimizers["fused"].step()
        arrays["p16"].copy_(arrays["master"].detach())

    return {"torch_fused": (optimizers["fused"].step, arrays["master"].numel()),
            "torch_fused_chain_widen": (chain, arrays["master"].numel()),
            "torch_foreach": (optimizers["foreach"].step, part.numel())}


def widen(arrays):
    arrays["master"].grad.copy_(arrays["g16"])


def deepspeed_variants(torch, arrays):
    # It logs and compiles on stdout, which is ours.
    saved = os.dup(1)
    os.dup2(2, 1)
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    optimizer = DeepSpeedCPUAdam([arrays["master"]], lr=1e-3, weight_decay=0.01, adamw_mode=True)
    optimizer.step()
    sys.stdout.flush()
    os.dup2(saved, 1)

    def chain():
        arrays["master"].grad.mul_(SCALE)
        optimizer.step()
        arrays["p16"].copy_(arrays["master"].detach())

    def chain_widen():
        widen(arrays)
        chain()

    size = arrays["master"].numel()
    return {"deepspeed": (optimizer.step, size), "deepspeed_chain": (chain, size),
            "deepspeed_chain_widen": (chain_widen, size)}


def main():
    options = parse()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    import torch
    torch.set_num_threads(options.threads)
    half = torch.bfloat16 if options.gradient == "bf16" else torch.float16
    master = torch.nn.Parameter(torch.randn(options.size).mul_(0.02))
    master.grad = torch.randn(options.size).mul_(1e-3)
    arrays = {"master": master, "g16": master.grad.to(half), "p16": master.detach().to(half)}
    variants = {}
    for peer in options.peers.split(","):
        make = {"torch": torch_variants, "deepspeed": deepspeed_variants}.get(peer)
        if make is None:
            sys.exit(f"adam_peers.py: unknown peer {peer}; known are torch and deepspeed")
        variants.update(make(torch, arrays))
    versions = {}
    for name in ("torch", "deepspeed"):
        if name in sys.modules:
            versions[name] = sys.modules[name].__version__
    for step, _ in variants.values():
        step()  # allocates state, first touch
    print(json.dumps({"ready": sorted(variants), "versions": versions}), flush=True)
    for _ in sys.stdin:
        result = {}
        for name, (step, size) in variants.items():
            start = time.perf_counter()
            step()
            result[name] = (time.perf_counter() - start) * 1e9 / size
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
