"""Measures a training loop's backward pass and step with offloaded optimizers and with others.

usage: optimizers.py [--parameters N] [--steps N] [--only NAME,...] [--nvme DIR] [--json]
       optimizers.py --overhead [--parameters N] [--steps N] [--width N] [--json]

Each optimizer trains the same model of linear layers in bf16 on CPU tensors, in a process of its
own, one after the other. Printed are, for each, the median seconds of a backward pass with its
step, what the step adds to a backward pass without one, and the most memory that the process had at
once, in bytes a parameter less what the interpreter and its libraries take.

With --overhead, steps of `spillway split` whose gradients are there already are compared with the
calls of the native trainer that they make. Of what they take more, the range of torch's profiler is
told by itself: torch.optim.Optimizer puts it around every optimizer's step.
"""
import argparse
import importlib.util
import json
import resource
import statistics
import subprocess
import sys
import time

# Name, and what it keeps of a parameter besides its bf16 value and gradient.
OPTIMIZERS = {
    "spillway split": "exact fp32 master and moments, 10 bytes",
    "spillway split nvme": "the same on disk",
    "spillway bf16": "exact fp32 master, bf16 moments rounded stochastically, 6 bytes",
    "spillway int8": "exact fp32 master, 8-bit moments, 4.03 bytes",
    "torch fused": "no master; bf16 moments, 4 bytes: not exact",
    "torch foreach": "no master; bf16 moments, 4 bytes: not exact",
    "torch fused fp32": "fp32 master and moments by hand: widen gradients, clip, step, round",
    "deepspeed": "fp32 master and moments by hand around DeepSpeedCPUAdam",
    "torchao 8bit": "no master, stochastic rounding; 8-bit moments, 2.06 bytes: not exact",
    "torchao 4bit": "no master, stochastic rounding; 4-bit moments, 1.03 bytes: not exact",
}


def make_model(parameters: int, width: int = 2048):
    import torch
    torch.manual_seed(1)
    layers = max(1, parameters // (width * width))
    return torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False, dtype=torch.bfloat16)
                                 for _ in range(layers)))


class WithMasters:
    """fp32 copies that an optimizer updates, as mixed-precision loops keep them."""

    def __init__(self, model, make):
        self.parameters = list(model.parameters())
        self.masters = [p.detach().float().requires_grad_() for p in self.parameters]
        self.optimizer = make(self.masters)

    def step(self):
        import torch
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.grad = parameter.grad.float()
            parameter.grad = None
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0, foreach=True)
        self.optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(self.parameters, self.masters, strict=True):
                parameter.copy_(master)
                master.grad = None


class Clipped:
    """An optimizer of the parameters themselves, with clipping."""

    def __init__(self, model, make):
        self.parameters = list(model.parameters())
        self.optimizer = make(self.parameters)

    def step(self):
        import torch
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def make_optimizer(name: str, model, nvme: str | None):
    import torch
    if name.startswith("spillway"):
        from spillway.torch import OffloadedAdamW
        return OffloadedAdamW(model.parameters(), lr=1e-4, max_norm=1.0,
                              state_format=name.split()[1],
                              nvme=[nvme] if name.endswith("nvme") else [])
    if name == "deepspeed":
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        return WithMasters(model, lambda p: DeepSpeedCPUAdam(p, lr=1e-4, adamw_mode=True))
    if name.startswith("torchao"):
        from torchao import optim
        make = {"8bit": optim.AdamW8bit, "4bit": optim.AdamW4bit}[name.split()[1]]
        return Clipped(model, lambda p: make(p, lr=1e-4, bf16_stochastic_round=True))
    make = {"torch fused": lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True),
            "torch foreach": lambda p: torch.optim.AdamW(p, lr=1e-4, foreach=True)}
    if name in make:
        return Clipped(model, make[name])
    return WithMasters(model, make["torch fused"])


def measure(name: str, parameters: int, steps: int, nvme: str | None) -> dict:
    import torch
    make_model(4_194_304)(torch.ones(1, 2048, dtype=torch.bfloat16)).sum().backward()
    model_free = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    model = make_model(parameters)
    count = sum(p.numel() for p in model.parameters())
    x = torch.randn(4, 2048, dtype=torch.bfloat16)

    def backward():
        loss = model(x).float().square().mean()
        begin = time.perf_counter()
        loss.backward()
        return begin

    optimizer = make_optimizer(name, model, nvme)
    together = []
    for _ in range(steps + 2):  # the first ones touch memory
        begin = backward()
        optimizer.step()
        model.zero_grad()
        together.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    del optimizer
    alone = []
    for _ in range(steps):
        begin = backward()
        alone.append(time.perf_counter() - begin)
        for parameter in model.parameters():
            parameter.grad = None
    seconds = statistics.median(together[2:])
    return {"optimizer": name, "parameters": count, "seconds": seconds,
            "step_seconds": seconds - statistics.median(alone),
            "bytes_per_parameter": (peak - model_free) / count}


def measure_overhead(parameters: int, steps: int, width: int) -> dict:
    import torch
    model = make_model(parameters, width)
    count = sum(p.numel() for p in model.parameters())
    gradients = [torch.randn_like(p) * 1e-3 for p in model.parameters()]
    optimizer = make_optimizer("spillway split", model, None)
    (shard,) = optimizer._shards
    flat = [gradient.view(-1) for gradient in gradients]

    def by(step):
        for index, (parameter, gradient) in enumerate(
                zip(model.parameters(), gradients, strict=True)):
            parameter.grad = gradient
            shard.add_gradient(index)  # as the hook of the parameter does
        step()
        shard.discard_gradients()  # as zero_grad does

    def by_native_calls():
        for index, gradient in enumerate(flat):
            shard.trainer.add_gradient(index, gradient)
        shard.trainer.step(1.0, 1.0)

    unprofiled = type(optimizer).step.__wrapped__
    ways = [lambda: by(optimizer.step), lambda: by(lambda: unprofiled(optimizer)), by_native_calls]
    seconds = []
    for step in range(steps + 2):
        seconds.append([0.0] * len(ways))
        for way in range(len(ways)):
            way = (way + step) % len(ways)
            begin = time.perf_counter()
            ways[way]()
            seconds[-1][way] = time.perf_counter() - begin
    seconds = seconds[2:]  # the first ones touch memory
    native_seconds = statistics.median(natively for *_, natively in seconds)
    more = statistics.median(whole - natively for whole, _, natively in seconds)
    unprofiled_more = statistics.median(own - natively for _, own, natively in seconds)
    return {"parameters": count, "tensors": len(flat), "native_seconds": native_seconds,
            "more_seconds": more, "overhead": more / native_seconds,
            "unprofiled_more_seconds": unprofiled_more}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=256 << 20)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", default=",".join(OPTIMIZERS))
    parser.add_argument("--nvme", help="a folder for state on disk; without it that is left out")
    parser.add_argument("--json", action="store_true", help="one JSON document a line")
    parser.add_argument("--overhead", action="store_true", help="measure that of Python")
    parser.add_argument("--width", type=int, default=512, help="of a layer, with --overhead")
    parser.add_argument("--measure", choices=OPTIMIZERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.parameters, arguments.steps,
                                 arguments.nvme)))
        return 0
    if arguments.overhead:
        result = measure_overhead(arguments.parameters, arguments.steps, arguments.width)
        print(json.dumps(result) if arguments.json else
              f"{result['tensors']} tensors: native calls {result['native_seconds']:.5f} s, "
              f"{1e6 * result['more_seconds']:.0f} us more, {100 * result['overhead']:.2f} %; "
              f"{1e6 * result['unprofiled_more_seconds']:.0f} us without torch's range")
        return 0
    names = arguments.only.split(",")
    for name in names:
        if name not in OPTIMIZERS:
            parser.error(f"there is no optimizer {name!r}; there are {', '.join(OPTIMIZERS)}")
    if not arguments.json:
        print(f"{'optimizer':<20} {'backward + step s':>18} {'step s':>8} {'bytes/parameter':>16}")
    for name in names:
        if name.endswith("nvme") and not arguments.nvme:
            continue
        if importlib.util.find_spec(name.split()[0]) is None:
            print(f"{name}: is not installed", file=sys.stderr)
            continue
        command = [sys.executable, __file__, "--measure", name, "--parameters",
                   str(arguments.parameters), "--steps", str(arguments.steps)]
        if arguments.nvme:
            command += ["--nvme", arguments.nvme]
        done = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", check=False)
        if done.returncode:
            print(f"{name}: ended with {done.returncode}", file=sys.stderr)
            return 1
        result = json.loads(done.stdout.splitlines()[-1])
        if arguments.json:
            print(json.dumps(result), flush=True)
        else:
            print(f"{name:<20} {result['seconds']:>18.3f} {result['step_seconds']:>8.3f} "
                  f"{result['bytes_per_parameter']:>16.2f}   {OPTIMIZERS[name]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
