"""A Trainer whose processes train together as ranks."""
from __future__ import annotations

import os
import re
import warnings
from typing import Any

import torch
import torch.distributed as dist

from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._alone import check_alone, processes


def take_stage(options: dict[str, Any]) -> int:
    """Takes the stage of ZeRO that ranks train with out of `options` and returns it. One process
    needs none."""
    if "process_group" in options:
        raise InvalidArgumentError(
            "process_group of the Trainer is that of all processes, among which it deals batches "
            "out: leave process_group out")
    stage = options.pop("stage", 2)
    if stage not in (1, 2):
        raise InvalidArgumentError(
            f"stage of the Trainer is {stage}; it is 1 (each rank keeps a part of the state) or 2 "
            "(and of the gradients)")
    return stage


def check_ranks(args: Any, accelerator: Any, name: str) -> None:
    """Raises if there are several processes that cannot train together."""
    if not dist.is_available() or not dist.is_initialized():
        check_alone(name)
    if (count := processes()) == 1:
        return
    parallel = getattr(accelerator, "parallelism_config", None)
    others = [] if parallel is None else [
        each for each in ("tp", "cp", "sp") if getattr(parallel, f"{each}_size", 1) > 1]
    wishes = {
        "FSDP (fsdp of the arguments, or accelerate's launcher)": (
            args.fsdp or accelerator.distributed_type.value == "FSDP",
            "leave it out: ranks keep parts of the state, and of the gradients, by `stage`"),
        f"a parallelism_config of {', '.join(others)}": (
            others, "all processes are ranks with batches of their own"),
        "auto_find_batch_size": (
            args.auto_find_batch_size, "a rank that runs out of memory would leave the others; set "
            "per_device_train_batch_size")}
    for what, (is_wished, remedy) in wishes.items():
        if is_wished:
            raise NotSupportedError(f"{name} with {count} processes and {what} is not supported: "
                                    f"{remedy}")


def check_group(optimizer: Any) -> None:
    """Raises if an optimizer that is given does not train with all processes."""
    size = 1 if optimizer._ranks is None else optimizer._ranks.size
    if size != processes():
        raise InvalidArgumentError(
            f"the optimizer in optimizers= trains with {size} rank(s), and the Trainer has "
            f"{processes()} processes: give it process_group=torch.distributed.group.WORLD")


def group_of_ranks(streams: bool) -> Any:
    """Returns the group of all processes; where models are streamed, one that exchanges host
    memory."""
    if streams and dist.get_backend() == "nccl":
        return dist.new_group(backend="gloo")
    return dist.group.WORLD


def share_untrained(model: torch.nn.Module, streams: bool) -> None:
    """Makes buffers and frozen parameters those of the first rank, as the optimizer does it with
    parameters that are trained, and with frozen ones of a model that is streamed."""
    frozen = [] if streams else [
        parameter for parameter in model.parameters() if not parameter.requires_grad]
    with torch.no_grad():
        for tensor in (*frozen, *model.buffers()):
            values = tensor.detach().contiguous()
            dist.broadcast(values, 0)
            tensor.copy_(values)
    if any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm)
           and module.track_running_stats for module in model.modules()):
        warnings.warn("the model has BatchNorm, whose running statistics stay those of each rank's "
                      "own batches: evaluations use these, and checkpoints have the first rank's",
                      stacklevel=4)


def has_saved_state(folder: str) -> bool:
    """Whether `folder` has state of an optimizer. Raises on all ranks unless each of them has its
    part there, and nobody else has one."""
    count = processes()
    there = os.listdir(folder) if os.path.isdir(folder) else []
    parts = [name for name in there if re.fullmatch(r"rank\d+", name)]
    fits = f"rank{dist.get_rank()}" in parts and f"rank{count}" not in parts if count > 1 else (
        not parts)
    every: list[Any] = [(bool(there), fits)]
    if count > 1:
        every = [None] * count
        dist.all_gather_object(every, (bool(there), fits))
    if not any(is_there for is_there, _ in every):
        return False
    if not all(fits for _, fits in every):
        raise InvalidArgumentError(
            f"{folder} has the state that {len(parts) or 1} process(es) have saved, and {count} "
            "are to load it: start as many, or remove that folder to go on with fresh moments")
    return True
