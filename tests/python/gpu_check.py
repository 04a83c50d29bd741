"""Trains with spillway.torch on a GPU and compares the bits with models that stay there.

usage: gpu_check.py [--steps N] [--torch-device cuda|cpu]

Needs PyTorch and the package spillway, and neither pytest nor another package: tools/gpu-run runs
it too. Where transformers is installed, its Trainer is checked as well. On the CPU the same checks
run without a GPU. Prints how many seconds each took as JSON.
Exit 77 (skipped) where there is no GPU, or no extension for this Python.
"""
import argparse
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import sys
import tempfile
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # for sums in a fixed order

import torch  # noqa: E402: after what it reads

def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(77)


def package():
    """Returns spillway.torch."""
    found = importlib.util.find_spec("spillway")
    folders = found.submodule_search_locations if found else []
    # That of the stable ABI is for Python 3.12 and later ones.
    suffixes = [suffix for suffix in importlib.machinery.EXTENSION_SUFFIXES
                if suffix != ".abi3.so" or sys.version_info >= (3, 12)]
    if not any(pathlib.Path(folder, f"_native{suffix}").exists() for folder in folders
               for suffix in suffixes):
        skip(f"the package has no extension for Python {sys.version.split()[0]}; "
             "docs/gpu.md says how tools/gpu-bundle packs one")
    return importlib.import_module("spillway.torch")


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.inner = torch.nn.Linear(width, 4 * width)
        self.outer = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.outer(torch.tanh(self.inner(self.norm(x))))


class Model(torch.nn.Module):
    """8 blocks, and some parameters that are of none."""

    def __init__(self, width, recomputes):
        super().__init__()
        self.first = torch.nn.Linear(8, width)
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(8))
        self.last = torch.nn.Linear(width, 1)
        self.register_buffer("scale", torch.full((), 0.5))
        self.recomputes = recomputes

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = (torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
                 if self.recomputes else block(x))
        return (self.last(x) * self.scale).square().mean()


class ModelOfTrainer(Model):
    def forward(self, x):
        return (super().forward(x),)


class Checks:
    def __init__(self, spillway_torch, device, steps):
        self.torch, self.device, self.steps = spillway_torch, torch.device(device), steps
        self.width = 512 if device == "cuda" else 64  # 67 MB in fp32, or 1 MB

    def model(self, dtype=torch.float32, frozen=False, recomputes=False):
        torch.manual_seed(1)
        model = Model(self.width, recomputes).to(dtype)
        if frozen:
            model.blocks[3].requires_grad_(False)
            model.blocks[5].inner.requires_grad_(False)
            model.last.bias.requires_grad_(False)
        return model

    def train(self, model, device, passes=1, deferred=False, **options):
        """Returns losses, parameters and the optimizer."""
        optimizer = self.torch.OffloadedAdamW(
            model.parameters(), lr=1e-3, max_norm=1.0, accumulation_steps=passes,
            deferred=model if deferred else None, **options)
        dtype, losses = next(model.parameters()).dtype, []
        for step in range(self.steps * passes):
            torch.manual_seed(100 + step)
            loss = model(torch.randn(16, 8).to(device, dtype))
            loss.backward()
            losses.append(loss.item())
            if (step + 1) % passes == 0:
                optimizer.step()
                optimizer.zero_grad()
        optimizer.synchronize()
        return losses, {name: value.cpu() for name, value in model.state_dict().items()}, optimizer

    def same(self, one, other):
        assert one[0] == other[0], f"losses differ: {one[0]} and {other[0]}"
        for name, value in one[1].items():
            assert torch.equal(value, other[1][name]), f"{name} differs"

    def updates_are_those_of_the_host(self):
        # The same gradients but for the last bits of sums, and Adam's steps are of one length.
        for options in ({}, {"passes": 2}, {"gradient_memory": "1KiB"}):
            _, there, _ = self.train(self.model().to(self.device), self.device, **options)
            _, here, _ = self.train(self.model(), torch.device("cpu"), **options)
            for name, value in there.items():
                close = torch.isclose(value, here[name], rtol=1e-3, atol=1e-4)
                assert close.float().mean() > 0.99, f"{name} is not that of the host: {options}"

    def deferred_updates_have_the_same_bits(self):
        at_once, deferred = (self.model().to(self.device) for _ in range(2))
        self.same(self.train(at_once, self.device),
                  self.train(deferred, self.device, deferred=True))

    def offloaded(self, activation_memory=None, **of_model):
        """Returns a model on half of what its parameters take, and that number of bytes."""
        model = self.model(**of_model)
        budget = sum(parameter.nbytes for parameter in model.parameters()) // 2
        self.torch.offload_model(model, budget, activation_memory=activation_memory,
                                 device=self.device)
        return model, budget

    def streams(self, of_model=None, activation_memory=None, **of_optimizer):
        """A streamed model has the bits of one that stays on the device, and is inside its budget;
        between passes its blocks are on the CPU."""
        of_model = of_model or {}
        resident = self.train(self.model(**of_model).to(self.device), self.device, **of_optimizer)
        model, budget = self.offloaded(activation_memory, **of_model)
        streamed = self.train(model, self.device, **of_optimizer)
        self.same(resident, streamed)
        assert {parameter.device.type for parameter in model.blocks.parameters()} == {"cpu"}
        assert model.last.weight.device.type == self.device.type
        assert model.scale.device.type == self.device.type
        (shard,) = streamed[2]._shards
        held = sum(size for tier, _, size in shard.trainer.memory() if tier == "device")
        assert held <= budget, f"{held} bytes are on the device, and its budget is {budget}"

    def streamed_models_have_the_bits_of_resident_ones(self):
        self.streams()
        self.streams(passes=2)
        self.streams(deferred=True)
        self.streams(of_model={"dtype": torch.bfloat16}, state_format="split")

    def frozen_parameters_are_streamed(self):
        self.streams(of_model={"frozen": True})

    def saved_activations_leave_and_come_back(self):
        self.streams(activation_memory="64MB")
        self.streams(of_model={"recomputes": True}, activation_memory="64MB")

    def trainers_stream_their_models(self):
        """A Trainer of transformers, where it is installed, leaves a streamed model in its place
        and brings batches to the device."""
        if importlib.util.find_spec("transformers") is None:
            return
        transformers = importlib.import_module("transformers")
        kind = importlib.import_module("spillway.huggingface").SpillwayTrainer
        models = []
        for streams in (False, True):
            torch.manual_seed(1)
            models.append(ModelOfTrainer(self.width, recomputes=False))
            budget = sum(parameter.nbytes for parameter in models[-1].parameters()) // 2
            with tempfile.TemporaryDirectory() as folder:
                trainer = kind(model=models[-1], args=transformers.TrainingArguments(
                    output_dir=folder, use_cpu=self.device.type == "cpu", max_steps=self.steps,
                    report_to=[], save_strategy="no", disable_tqdm=True, seed=1),
                    train_dataset=[{"x": torch.full((8,), i / 16)} for i in range(16)],
                    data_collator=lambda rows: {"x": torch.stack([row["x"] for row in rows])},
                    spillway={"device_memory": budget} if streams else {})
                trainer.remove_callback(transformers.PrinterCallback)
                trainer.train()
        assert {parameter.device.type for parameter in models[1].blocks.parameters()} == {"cpu"}
        assert models[1].last.weight.device.type == self.device.type
        for one, other in zip(*(model.parameters() for model in models), strict=True):
            assert torch.equal(one.cpu(), other.cpu()), "parameters differ"

    def torch_holds_a_part_of_a_streamed_model(self):
        """Parameters and gradients of the whole model are never in torch's own memory."""
        if self.device.type != "cuda":
            return
        for first in (True, False):  # in which libraries take their workspaces
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            model, half = self.offloaded()
            self.train(model, self.device, gradient_memory="8MB")
            peak = torch.cuda.max_memory_allocated() - before
            del model
            assert first or peak < half, f"torch held {peak} bytes, and half of it all is {half}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--torch-device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    if options.torch_device == "cuda" and not torch.cuda.is_available():
        skip("this machine has no GPU that PyTorch can use")
    torch.use_deterministic_algorithms(True)
    checks = Checks(package(), options.torch_device, options.steps)
    seconds = {}
    for check in (checks.updates_are_those_of_the_host, checks.deferred_updates_have_the_same_bits,
                  checks.streamed_models_have_the_bits_of_resident_ones,
                  checks.frozen_parameters_are_streamed,
                  checks.saved_activations_leave_and_come_back,
                  checks.trainers_stream_their_models,
                  checks.torch_holds_a_part_of_a_streamed_model):
        begin = time.monotonic()
        check()
        seconds[check.__name__] = round(time.monotonic() - begin, 3)
    print(json.dumps({"steps": options.steps, "seconds": seconds}))


if __name__ == "__main__":
    main()
