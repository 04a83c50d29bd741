"""`deepspeed.zero`: contexts in which DeepSpeed cuts parameters, which are whole here."""
from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from spillway.errors import NotSupportedError
from spillway.torch import comm
from spillway.torch._deepspeed_names import refusal


class Init(contextlib.ContextDecorator):
    """A context in which a model is made. Its parameters are whole, and on the CPU: `initialize`
    moves them to the precision of its configuration. `dtype` is that in which they are made. The
    other arguments are DeepSpeed's, and change nothing; parameters on disk are refused."""

    def __init__(self, module: torch.nn.Module | None = None, data_parallel_group: Any = None,
                 mem_efficient_linear: bool = True, remote_device: str | None = None,
                 pin_memory: bool = False, config_dict_or_path: Any = None, config: Any = None,
                 enabled: bool = True, dtype: torch.dtype | None = None, mpu: Any = None,
                 **others: Any) -> None:
        if remote_device not in (None, "none", "cpu"):
            raise NotSupportedError(
                f"remote_device of zero.Init is {remote_device}, and parameters are made in host "
                "memory: leave it out; optimizer state is on disk with nvme_path")
        self._dtype = dtype if enabled else None
        self._before: list[torch.dtype] = []

    def __enter__(self) -> None:
        self._before.append(torch.get_default_dtype())
        if self._dtype is not None:
            torch.set_default_dtype(self._dtype)

    def __exit__(self, *_: Any) -> None:
        torch.set_default_dtype(self._before.pop())


@contextlib.contextmanager
def GatheredParameters(params: Iterable[torch.Tensor] | torch.Tensor,  # noqa: N802
                       modifier_rank: int | None = None, fwd_module: Any = None,
                       enabled: bool = True) -> Iterator[None]:
    """A context in which parameters are whole, which they always are. What `modifier_rank` writes
    into them is given to all ranks at its end, so all of them enter it."""
    yield
    if enabled and modifier_rank is not None and comm.get_world_size() > 1:
        for each in [params] if isinstance(params, torch.Tensor) else list(params):
            values = each.detach().clone(memory_format=torch.contiguous_format)
            comm.broadcast(values, modifier_rank)
            with torch.no_grad():
                each.copy_(values)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    raise refusal(name, "zero.", "parameters are whole, and there is nothing to cut: leave it out")
