"""The interface of DeepSpeed's engine, for loops that are written for it."""
from __future__ import annotations

import argparse
import contextlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from spillway._documents import section_of, text_of
from spillway._paths import Path, existing_folders
from spillway._unused import check_unused
from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._alone import check_unwrapped
from spillway.torch._engine_client import (
    check_client,
    check_end,
    check_optimizer,
    check_schedule,
    clip,
    made_by,
    offloaded,
    only_one,
    with_rate_of,
)
from spillway.torch._engine_exports import WithExports
from spillway.torch._engine_ranks import (
    check_ranks,
    configuration_of,
    group_of_all,
    loader_of,
    meet,
    share_others,
    stage_of,
)
from spillway.torch._engine_settings import DTYPES
from spillway.torch._loss_scaling import LossScaling
from spillway.torch._offloaded import OffloadedOptimizer
from spillway.torch.optimizers import (
    OffloadedAdagrad,
    OffloadedAdam,
    OffloadedAdamW,
    OffloadedLion,
    OffloadedSGD,
)

#: Notes on defaults of the native engine that are not those here.
_OTHERWISE = ("spillway.decay: absent", "gradient_clipping: absent", "scheduler: absent")


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the arguments that DeepSpeed's launcher passes; `initialize` reads the configuration."""
    group = parser.add_argument_group("DeepSpeed")
    group.add_argument("--deepspeed", action="store_true", help="changes nothing")
    group.add_argument("--deepspeed_config", help="the configuration, a file of JSON")
    return parser


def init_distributed(dist_backend: str | None = None, auto_mpi_discovery: bool = True,
                     distributed_port: int = 29500, verbose: bool = True, timeout: Any = None,
                     init_method: str | None = None, dist_init_required: bool | None = None,
                     config: Any = None, rank: int = -1, world_size: int = -1) -> None:
    """Makes the process group of all ranks, where there are several processes and no group.

    `dist_backend` is gloo, also where it is nccl, which moves no CPU tensors. `timeout`,
    `init_method`, `rank` and `world_size` are those of torch.distributed.init_process_group; with
    `dist_init_required=False` it does nothing. The other arguments change nothing. One process that
    no launcher has started needs no group and makes none.
    """
    if dist_init_required is not False:
        meet(dist_backend, timeout, init_method, rank, world_size)


def initialize(args: Any = None, model: torch.nn.Module | None = None,
               optimizer: torch.optim.Optimizer | Callable[..., Any] | None = None,
               model_parameters: Iterable[Any] | None = None, training_data: Any = None,
               lr_scheduler: Any = None, *, collate_fn: Callable[..., Any] | None = None,
               config: Path | Mapping[str, Any] | None = None,
               config_params: Path | Mapping[str, Any] | None = None, mpu: Any = None,
               mesh_param: Any = None, dist_init_required: bool | None = None,
               distributed_port: int = 29500) -> tuple[Engine, OffloadedOptimizer, Any, Any]:
    """Returns (engine, optimizer, data loader or None, scheduler or None) as deepspeed.initialize.

    `config` is DeepSpeed's JSON, its path or a dict, also as `args.deepspeed_config`: the optimizer
    with `offload_optimizer`, batch sizes, clipping, precision, schedule, and a section `spillway`.
    The model moves to the precision of the configuration, and stays on the CPU.
    `optimizer` is one of spillway.torch, or AdamW, Adam, Adagrad or SGD of torch.optim, in whose
    place an offloaded one trains, or a function that makes one of the parameters. `lr_scheduler`
    may be a scheduler or a function of the optimizer. `config_params` is another name of `config`.
    `distributed_port` changes nothing, and `mpu` and `mesh_param` are refused.

    Processes of torchrun are ranks that train together, all of which make this call and those of
    the engine. It makes their process group, unless `dist_init_required` is False. Each rank has
    micro-batches of its own, and its part of `training_data`; parameters become those of rank 0.
    """
    if model is None:
        raise InvalidArgumentError("there is no model; give model=")
    for name, value in (("mpu", mpu), ("mesh_param", mesh_param)):
        if value is not None:
            raise NotSupportedError(f"{name} is given, and tensors are not cut over ranks here, "
                                    "which train copies of the model: leave it out")
    check_unwrapped(model, "spillway.torch.initialize")
    given = only_one(args, config, config_params)
    text, origin = text_of(given)
    group = group_of_all(dist_init_required)
    configuration, document = configuration_of(text, origin, 1 if group is None else group.size())
    if lr_scheduler is None:
        check_end(document)
    client = optimizer = made_by(optimizer, model.parameters() if model_parameters is None
                                 else model_parameters)
    if client is not None:
        check_client(client, document, configuration.nvme)
        if isinstance(client, OffloadedOptimizer):
            check_ranks(client, group, document)
        if lr_scheduler is None and "scheduler" in document:
            configuration = with_rate_of(client, document, origin)
    if section_of(document, "spillway").get("decay") == "matrices":
        raise NotSupportedError(
            "spillway.decay is matrices, and the engine decays by the groups of model_parameters: "
            "give groups, those of biases and norms with weight_decay 0, and leave decay out")
    notes = check_unused(document, configuration.nvme, "the engine")
    otherwise = _OTHERWISE if client is None else (*_OTHERWISE, "optimizer: absent")
    for note in (*configuration.notes, *notes):
        if not note.startswith(otherwise):
            warnings.warn(note, stacklevel=2)
    limit = 0.0 if document.get("gradient_clipping") is None else configuration.max_norm
    if not isinstance(client, OffloadedOptimizer):
        existing_folders(configuration.nvme, "nvme_path")  # before the model changes
    model = model.to(DTYPES[configuration.dtype])
    if isinstance(client, OffloadedOptimizer):
        clip(client, limit)
    else:
        options = {**_options(configuration, group, document), "max_norm": limit}
        optimizer = offloaded(client, **options) if client is not None else _optimizer(
            configuration.group, model.named_parameters() if model_parameters is None
            else model_parameters, **options)
    check_optimizer(optimizer, model)
    if optimizer.ranks is not None:
        share_others(optimizer.ranks, model, optimizer)
    schedule = lr_scheduler(optimizer) if callable(lr_scheduler) else lr_scheduler
    check_schedule(schedule, optimizer, client)
    if schedule is None and "scheduler" in document:
        schedule = Schedule(optimizer, configuration)
    loader = None if training_data is None else loader_of(
        training_data, configuration.micro_batch, collate_fn, optimizer.ranks)
    engine = Engine(model, optimizer, schedule, loader, configuration, document)
    engine.config, engine.training_data, engine.collate_fn = given, training_data, collate_fn
    engine.client_optimizer, engine.client_lr_scheduler = client, lr_scheduler
    return engine, optimizer, loader, schedule


def _options(configuration: Any, group: Any, document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the configuration says of an optimizer of any kind."""
    of_ranks = {} if group is None else {"process_group": group, "stage": stage_of(document)}
    return {"nvme": configuration.nvme, "state_format": configuration.state_format,
            "accumulation_steps": configuration.accumulation_steps, "missing": "zero",
            "host_memory": configuration.host_memory, "threads": configuration.threads,
            "seed": configuration.seed, "isa": section_of(document, "spillway").get("isa"),
            **of_ranks}


def _optimizer(group: Any, parameters: Iterable[Any], **options: Any) -> OffloadedOptimizer:
    rules = {"lr": group.lr, "weight_decay": group.weight_decay}
    betas = (group.beta1, group.beta2)
    kinds: dict[str, tuple[type[OffloadedOptimizer], dict[str, Any]]] = {
        "adam": (OffloadedAdamW if group.decoupled else OffloadedAdam,
                 {"betas": betas, "eps": group.eps}),
        "adagrad": (OffloadedAdagrad, {"eps": group.eps}),
        "lion": (OffloadedLion, {"betas": betas}),
        "sgd": (OffloadedSGD, {"momentum": group.beta1})}
    kind, more = kinds[group.optimizer]
    optimizer = kind(parameters, **rules, **more, **options)
    if not group.bias_correction:
        for each in (optimizer.defaults, *optimizer.param_groups):
            each["bias_correction"] = False
    return optimizer


class Schedule:
    """The schedule of a configuration: gives each group the rate of its next update."""

    def __init__(self, optimizer: OffloadedOptimizer, configuration: Any) -> None:
        self.optimizer = optimizer
        self._configuration = configuration
        self.updates: int = 0
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


class Engine(WithExports):
    """Wraps a model as DeepSpeed's engine does: `engine(x)`, `engine.backward(loss)`,
    `engine.step()`. Losses are divided by the number of micro-batches of a step; `step` updates
    after the last of them. `loss.backward()` does the same, but with fp16, where it is
    `engine.scale(loss).backward()`."""

    def __init__(self, model: torch.nn.Module, optimizer: OffloadedOptimizer, lr_scheduler: Any,
                 training_dataloader: Any, configuration: Any,
                 document: Mapping[str, Any]) -> None:
        super().__init__()
        self.module = model
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.training_dataloader = training_dataloader
        self.device: torch.device = torch.device("cpu")
        self.global_rank: int = 0 if optimizer.ranks is None else optimizer.ranks.rank
        self.world_size: int = 1 if optimizer.ranks is None else optimizer.ranks.size
        self.local_rank: int = int(os.environ.get("LOCAL_RANK", self.global_rank))
        self.micro_steps: int = 0
        self._first_micro_step = 0
        self.global_steps: int = 0
        self.global_samples: int = 0
        self.skipped_steps: int = 0
        self.inside_no_sync_ctxt: bool = False
        self.is_compiled: bool = False
        self._boundary: bool | None = None
        self._step_applied = False
        self._configuration = configuration
        self._document = document
        self._loss_scaling = LossScaling(configuration)
        optimizer.divide_by(self._loss_scaling.scale_now)
        optimizer.register_step_pre_hook(self._loss_scaling.check_step)
        self._loss_scaling.watch_gradients(optimizer)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        return self._loss_scaling.watch(self.module(*inputs, **keywords))

    def backward(self, loss: torch.Tensor, retain_graph: bool = False,
                 scale_wrt_gas: bool = True) -> torch.Tensor:
        """Runs backward for a micro-batch; its gradients leave as they become ready. Returns the
        loss, which is divided by the number of micro-batches unless `scale_wrt_gas` is False."""
        if scale_wrt_gas:
            loss = loss / self.gradient_accumulation_steps()
        self._loss_scaling.backward(loss, retain_graph)
        return loss

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the loss times the loss scale, for a `backward` of its own."""
        return self._loss_scaling.scale(loss)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Surrounds backward passes whose gradients ranks do not exchange yet, and in which `step`
        is refused. In stage 2 ranks always do, which is refused as by DeepSpeed."""
        if self.zero_optimization_partition_gradients():
            raise NotSupportedError(
                "no_sync with zero_optimization.stage 2, where ranks exchange gradients in each "
                "backward pass: leave it out, or set the stage to 1")
        if self.inside_no_sync_ctxt:
            raise InvalidArgumentError("no_sync within no_sync: enter it once")
        self.inside_no_sync_ctxt = True
        try:
            yield
        finally:
            self.inside_no_sync_ctxt = False

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the next `step` is after the last micro-batch, and updates."""
        if self._boundary is not None:
            return self._boundary
        passes = self.micro_steps + 1 - self._first_micro_step
        return passes % self.gradient_accumulation_steps() == 0

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Makes the steps that follow update, or not, in place of the count of micro-batches."""
        self._boundary = is_boundary

    def step(self, lr_kwargs: Mapping[str, Any] | None = None) -> None:
        """Counts a micro-batch; after the last one of a step, updates. `lr_kwargs` are
        arguments of the scheduler's step."""
        if self.inside_no_sync_ctxt:
            raise InvalidArgumentError("engine.step() within no_sync: call it after that")
        self.optimizer.check_unchanged(self.loss_scale())
        self._loss_scaling.end_pass()
        self._step_applied = False
        if self.is_gradient_accumulation_boundary():
            skipped = self.optimizer.skipped_steps
            self._loss_scaling.step(self.optimizer)
            self.optimizer.zero_grad()  # as with DeepSpeed
            self._step_applied = finite = self.optimizer.skipped_steps == skipped
            self.global_steps += 1
            self.global_samples += self.train_batch_size()
            self.skipped_steps += not finite
            self._configuration.take_step(finite)
            if finite and self.lr_scheduler is not None:
                self.lr_scheduler.step(**(lr_kwargs or {}))
        self.micro_steps += 1

    def release_device(self) -> None:
        """Frees the device's memory between steps, as the optimizer's `release_device` does."""
        self.optimizer.release_device()

    def resume_device(self) -> None:
        """Takes the memory again, as the optimizer's `resume_device` does."""
        self.optimizer.resume_device()

    def was_step_applied(self) -> bool:
        """Whether the last `step` has changed parameters."""
        return self._step_applied

    def get_global_grad_norm(self) -> float:
        """The norm of the last step, before clipping."""
        return self.optimizer.grad_norm

    def deepspeed_io(self, dataset: Any, batch_size: int | None = None, route: str = "train",
                     pin_memory: bool = True, data_sampler: Any = None,
                     collate_fn: Callable[..., Any] | None = None,
                     num_local_io_workers: int | None = None) -> torch.utils.data.DataLoader[Any]:
        """Returns a loader of micro-batches, each rank's part of the data; those of a `route` other
        than train are in the data's order. `pin_memory` changes nothing."""
        return loader_of(dataset, batch_size or self.train_micro_batch_size_per_gpu(),
                         collate_fn or self.collate_fn, self.optimizer.ranks,
                         sampler=data_sampler, shuffles=route == "train",
                         workers=num_local_io_workers or 0)

    def compile(self, backend: Any = "inductor",
                compile_kwargs: Mapping[str, Any] | None = None, schedule: Any = None,
                compiled_autograd_enabled: bool = False) -> None:
        """Compiles the model's forward pass in place with torch.compile, once."""
        if schedule is not None or compiled_autograd_enabled:
            raise NotSupportedError("engine.compile with schedule or compiled_autograd_enabled, "
                                    "which are for DeepCompile: leave them out")
        if not self.is_compiled:
            self.module.compile(backend=backend, **(compile_kwargs or {}))
        self.is_compiled = True

    def destroy(self) -> None:
        """Ends the optimizer, whose memory and folders go. The model keeps its values."""
        self.optimizer.close()
