"""The interface of DeepSpeed's engine, for loops that are written for it."""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from spillway._load import native
from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._offloaded import OffloadedOptimizer
from spillway.torch.optimizers import (
    OffloadedAdagrad,
    OffloadedAdam,
    OffloadedAdamW,
    OffloadedLion,
    OffloadedSGD,
)

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the arguments that DeepSpeed's launcher passes; `initialize` reads the configuration."""
    group = parser.add_argument_group("DeepSpeed")
    group.add_argument("--deepspeed", action="store_true", help="changes nothing")
    group.add_argument("--deepspeed_config", help="the configuration, a file of JSON")
    return parser


def init_distributed(*_: Any, **__: Any) -> None:
    """Raises if a launcher has started several processes: here there is one."""
    processes = os.environ.get("WORLD_SIZE", "1")
    if processes != "1":
        raise NotSupportedError(f"WORLD_SIZE is {processes}: this version trains in one process; "
                                "start the script once, or have the launcher start one")


def initialize(args: Any = None, model: torch.nn.Module | None = None,
               optimizer: OffloadedOptimizer | None = None,
               model_parameters: Iterable[Any] | None = None, training_data: Any = None,
               lr_scheduler: Any = None, *, collate_fn: Callable | None = None,
               config: str | os.PathLike | Mapping[str, Any] | None = None,
               **ignored: Any) -> tuple[Engine, OffloadedOptimizer, Any, Any]:
    """Returns (engine, optimizer, data loader or None, scheduler or None) as deepspeed.initialize.

    `config` is DeepSpeed's JSON, its path or a dict, also as `args.deepspeed_config`: the optimizer
    with `offload_optimizer`, batch sizes, clipping, precision, schedule, and a section `spillway`.
    The model moves to the precision of the configuration, and stays on the CPU.
    `lr_scheduler` may be a scheduler or a function of the optimizer. `dist_init_required`,
    `mpu` and `config_params` are ignored: there is one process.
    """
    if model is None:
        raise InvalidArgumentError("there is no model; give model=")
    config = getattr(args, "deepspeed_config", None) if config is None else config
    config = ignored.get("config_params") if config is None else config
    if config is None:
        raise InvalidArgumentError("there is no configuration; give config= (a path or a dict)")
    text, origin = ((json.dumps(config), "config") if isinstance(config, Mapping) else
                    (pathlib.Path(config).read_text(encoding="utf-8"), os.fspath(config)))
    configuration = native.Configuration(text, origin)
    for note in configuration.notes:
        warnings.warn(note, stacklevel=2)
    model = model.to(_DTYPES[configuration.dtype])
    if optimizer is None:
        parameters = model.named_parameters() if model_parameters is None else model_parameters
        optimizer = _optimizer(configuration, parameters)
    elif not isinstance(optimizer, OffloadedOptimizer):
        raise InvalidArgumentError(
            f"optimizer is a {type(optimizer).__name__}; make one of spillway.torch, or leave it "
            "to the configuration")
    if callable(lr_scheduler):
        lr_scheduler = lr_scheduler(optimizer)
    if lr_scheduler is None and "scheduler" in _sections(text):
        lr_scheduler = Schedule(optimizer, configuration)
    loader = None if training_data is None else torch.utils.data.DataLoader(
        training_data, batch_size=configuration.micro_batch, shuffle=True, collate_fn=collate_fn)
    return Engine(model, optimizer, lr_scheduler, loader, configuration), optimizer, loader, \
        lr_scheduler


def _sections(text: str) -> Iterable[str]:
    """Names of the sections; a text with comments is searched for the word instead."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return ["scheduler"] if '"scheduler"' in text else []


def _optimizer(configuration: Any, parameters: Iterable[Any]) -> OffloadedOptimizer:
    group = configuration.group
    rules = {"lr": group.lr, "weight_decay": group.weight_decay}
    betas = (group.beta1, group.beta2)
    kinds: dict[str, tuple[type[OffloadedOptimizer], dict[str, Any]]] = {
        "adam": (OffloadedAdamW if group.decoupled else OffloadedAdam,
                 {"betas": betas, "eps": group.eps}),
        "adagrad": (OffloadedAdagrad, {"eps": group.eps}),
        "lion": (OffloadedLion, {"betas": betas}),
        "sgd": (OffloadedSGD, {"momentum": group.beta1})}
    kind, more = kinds[group.optimizer]
    return kind(parameters, **rules, **more, nvme=configuration.nvme,
                state_format=configuration.state_format, max_norm=configuration.max_norm,
                accumulation_steps=configuration.accumulation_steps, missing="zero",
                host_memory=configuration.host_memory, threads=configuration.threads,
                seed=configuration.seed)


class Schedule:
    """The schedule of a configuration: gives each group the rate of its next update."""

    def __init__(self, optimizer: OffloadedOptimizer, configuration: Any) -> None:
        self.optimizer = optimizer
        self._configuration = configuration
        self.updates = 0
        self._apply()

    def _apply(self) -> None:
        rate = self._configuration.learning_rate(self.updates + 1)
        momentum = self._configuration.momentum(self.updates + 1)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
            if momentum is not None and "betas" in group:
                group["betas"] = (momentum, 0.99)

    def step(self) -> None:
        """Goes on to the rate of the next update."""
        self.updates += 1
        self._apply()

    def get_last_lr(self) -> list[float]:
        """The rates of the next update, by group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    get_lr = get_last_lr

    def state_dict(self) -> dict[str, int]:
        """How many updates were made."""
        return {"updates": self.updates}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Goes on where `state_dict` was taken."""
        self.updates = state["updates"]
        self._apply()


class Engine(torch.nn.Module):
    """Wraps a model as DeepSpeed's engine does: `engine(x)`, `engine.backward(loss)`,
    `engine.step()`. Losses are divided by the number of micro-batches of a step; `step` updates
    after the last of them."""

    def __init__(self, model: torch.nn.Module, optimizer: OffloadedOptimizer, lr_scheduler: Any,
                 training_dataloader: Any, configuration: Any) -> None:
        super().__init__()
        self.module = model
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.training_dataloader = training_dataloader
        self.device = torch.device("cpu")
        self.micro_steps = 0
        self.global_steps = 0
        self.skipped_steps = 0
        self._configuration = configuration

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        return self.module(*inputs, **keywords)

    def backward(self, loss: torch.Tensor, retain_graph: bool = False) -> torch.Tensor:
        """Runs backward for a micro-batch; its gradients leave as they become ready."""
        count = self.gradient_accumulation_steps()
        (loss * (self.loss_scale / count)).backward(retain_graph=retain_graph)
        return loss

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the next `step` is after the last micro-batch, and updates."""
        return (self.micro_steps + 1) % self.gradient_accumulation_steps() == 0

    def step(self) -> None:
        """Counts a micro-batch; after the last one of a step, updates."""
        if self.is_gradient_accumulation_boundary():
            skipped = self.optimizer.skipped_steps
            self.optimizer.step(divisor=self.loss_scale)
            finite = self.optimizer.skipped_steps == skipped
            self.global_steps += 1
            self.skipped_steps += not finite
            self._configuration.take_step(finite)
            if finite and self.lr_scheduler is not None:
                self.lr_scheduler.step()
        self.micro_steps += 1

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients of the step that is under way."""
        self.optimizer.zero_grad()

    @property
    def loss_scale(self) -> float:
        """What losses are multiplied by: 1 but with fp16."""
        return self._configuration.loss_scale

    def get_lr(self) -> list[float]:
        """The learning rates of the next update, by group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_global_grad_norm(self) -> float:
        """The norm of the last step, before clipping."""
        return self.optimizer.grad_norm

    def gradient_accumulation_steps(self) -> int:
        """Micro-batches of a step."""
        return self._configuration.accumulation_steps

    def train_micro_batch_size_per_gpu(self) -> int:
        """Examples of a micro-batch."""
        return self._configuration.micro_batch

    def train_batch_size(self) -> int:
        """Examples of a step."""
        return self.train_micro_batch_size_per_gpu() * self.gradient_accumulation_steps()

    def save_checkpoint(self, save_dir: str | os.PathLike, tag: str | None = None,
                        client_state: Mapping[str, Any] | None = None, **_: Any) -> bool:
        """Writes SAVE_DIR/TAG: the model, the optimizer's state block by block, and `client_state`.
        The file `latest` names it once it is whole."""
        tag = f"global_step{self.global_steps}" if tag is None else str(tag)
        folder = pathlib.Path(save_dir) / tag
        folder.mkdir(parents=True)
        self.optimizer.synchronize()
        torch.save(self.module.state_dict(), folder / "model.pt")
        self.optimizer.save(folder / "optimizer")
        with self.optimizer.state_left_out():
            groups = self.optimizer.state_dict()
        schedule = self.lr_scheduler.state_dict() if self.lr_scheduler is not None else None
        torch.save({"groups": groups, "schedule": schedule, "micro_steps": self.micro_steps,
                    "global_steps": self.global_steps, "skipped_steps": self.skipped_steps,
                    "scale": self._configuration.scale_state,
                    "client_state": dict(client_state or {})}, folder / "engine.pt")
        part = pathlib.Path(save_dir) / "latest.part"
        part.write_text(tag)
        part.replace(pathlib.Path(save_dir) / "latest")
        return True

    def load_checkpoint(self, load_dir: str | os.PathLike, tag: str | None = None,
                        **_: Any) -> tuple[str | None, dict[str, Any] | None]:
        """Goes on from LOAD_DIR/TAG, by default the latest; returns its path and `client_state`, or
        (None, None) where there is no checkpoint."""
        latest = pathlib.Path(load_dir) / "latest"
        if tag is None and not latest.exists():
            return None, None
        folder = pathlib.Path(load_dir) / (latest.read_text() if tag is None else str(tag))
        self.module.load_state_dict(torch.load(folder / "model.pt"))
        saved = torch.load(folder / "engine.pt")
        self.optimizer.load_state_dict(saved["groups"])
        self.optimizer.load(folder / "optimizer")
        if self.lr_scheduler is not None and saved["schedule"] is not None:
            self.lr_scheduler.load_state_dict(saved["schedule"])
        self.micro_steps, self.global_steps = saved["micro_steps"], saved["global_steps"]
        self.skipped_steps = saved["skipped_steps"]
        self._configuration.scale_state = saved["scale"]
        return str(folder), saved["client_state"]
