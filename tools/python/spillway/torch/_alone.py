"""Refuses what would train copies of a model apart: several processes, and wrappers that average
gradients behind the optimizer's back."""
from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from spillway.errors import InvalidArgumentError, NotSupportedError

#: What to do instead of a call that knows no ranks.
ONE_PROCESS = ("start one process (torchrun --nproc-per-node 1, without a launcher: python), or "
               "write a loop with an optimizer of spillway.torch that is given process_group="
               "torch.distributed.group.WORLD")
_OPTIMIZER = ("give it process_group=torch.distributed.group.WORLD, so that its ranks train "
              "together, or torch.distributed.new_subgroups(1)[0], so that each trains for itself")

_WRAPPERS = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}


def processes() -> int:
    """Returns how many processes this one was started with, or has met."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    said = os.environ.get("WORLD_SIZE", "1")
    return int(said) if said.isdecimal() else 1


def check_alone(what: str, remedy: str = ONE_PROCESS) -> None:
    """Raises if there are several processes, which `what` would let train apart."""
    if (count := processes()) > 1:
        raise NotSupportedError(f"{what} with {count} processes (WORLD_SIZE) would train each for "
                                f"itself: {remedy}")


def check_optimizer_alone() -> None:
    """Does that for an optimizer without a process group."""
    check_alone("an optimizer without process_group", _OPTIMIZER)


def check_unwrapped(model: Any, what: str) -> None:
    """Raises for what is no model, or one that a wrapper of torch's makes one of several ranks."""
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgumentError(
            f"{what} is given {model!r}, of type {type(model).__name__}, where a torch.nn.Module "
            "is expected: give it the model")
    for module in model.modules():
        names = {kind.__name__ for kind in type(module).__mro__}
        if found := _WRAPPERS & names:
            raise NotSupportedError(
                f"{what} is given a model in {found.pop()}, which averages or shards gradients "
                "that the optimizer has taken: give it the model itself; ranks train together with "
                "an optimizer that is given process_group=torch.distributed.group.WORLD")
