"""`deepspeed.comm`: torch.distributed, where a process that has met no other is a rank alone."""
from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp, is_available, is_initialized

from spillway.torch._deepspeed_names import refusal
from spillway.torch.engine import init_distributed

__all__ = ["ReduceOp", "all_gather", "all_reduce", "barrier", "broadcast", "destroy_process_group",
           "get_local_rank", "get_rank", "get_world_size", "init_distributed", "is_available",
           "is_initialized", "reduce"]


class _Done:
    """The work of a call that one rank alone makes: it has ended."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    is_success = is_completed


def _done(async_op: bool) -> _Done | None:
    return _Done() if async_op else None


def get_rank(group: Any = None) -> int:
    """The rank in the group; 0 alone."""
    return dist.get_rank(group) if is_initialized() else 0


def get_world_size(group: Any = None) -> int:
    """Ranks of the group; 1 alone."""
    return dist.get_world_size(group) if is_initialized() else 1


def get_local_rank() -> int:
    """The rank within this machine, as the launcher has set LOCAL_RANK."""
    return int(os.environ.get("LOCAL_RANK", get_rank()))


def destroy_process_group(group: Any = None) -> None:
    """Ends the group; alone there is none."""
    if is_initialized():
        dist.destroy_process_group(group)


def barrier(group: Any = None, async_op: bool = False, **keywords: Any) -> Any:
    """Waits until all ranks have come here."""
    return dist.barrier(group, async_op, **keywords) if is_initialized() else _done(async_op)


def all_reduce(tensor: torch.Tensor, op: Any = ReduceOp.SUM, group: Any = None,
               async_op: bool = False) -> Any:
    """Replaces the tensor by the sum over ranks, or what `op` is; alone it stays."""
    return dist.all_reduce(tensor, op, group, async_op) if is_initialized() else _done(async_op)


def reduce(tensor: torch.Tensor, dst: int, op: Any = ReduceOp.SUM, group: Any = None,
           async_op: bool = False) -> Any:
    """Does that on the rank `dst`."""
    return dist.reduce(tensor, dst, op, group, async_op) if is_initialized() else _done(async_op)


def broadcast(tensor: torch.Tensor, src: int, group: Any = None, async_op: bool = False) -> Any:
    """Replaces the tensor by that of the rank `src`."""
    return dist.broadcast(tensor, src, group, async_op) if is_initialized() else _done(async_op)


def all_gather(tensor_list: list[torch.Tensor], tensor: torch.Tensor, group: Any = None,
               async_op: bool = False) -> Any:
    """Copies the tensor of each rank into the list."""
    if is_initialized():
        return dist.all_gather(tensor_list, tensor, group, async_op)
    tensor_list[0].copy_(tensor)
    return _done(async_op)


def __getattr__(name: str) -> Any:
    """Gives what else torch.distributed has, which needs a process group."""
    if name.startswith("_"):
        raise AttributeError(name)
    if not hasattr(dist, name):
        raise refusal(name, "comm.", "use torch.distributed")
    return getattr(dist, name)
