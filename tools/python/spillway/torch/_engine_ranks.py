"""The ranks of an engine: how they meet, and what of a configuration each of them has."""
from __future__ import annotations

import datetime
import json
import math
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from spillway._documents import parsed, section_of, to_text
from spillway._load import native
from spillway.errors import InvalidArgumentError, IoError, NotSupportedError
from spillway.torch._alone import processes
from spillway.torch._offloaded import OffloadedOptimizer
from spillway.torch._ranks import SHARES, Ranks, checksum
from spillway.torch.streaming import is_streamed

#: What a launcher such as torchrun sets.
_LAUNCHED = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
_BATCH = "train_batch_size"
_FACTORS = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def meet(backend: str | None = None, timeout: datetime.timedelta | None = None,
         init_method: str | None = None, rank: int = -1, world_size: int = -1) -> None:
    """Makes the group of all ranks, where a launcher has started them and none has made it.

    Arguments are those of torch.distributed.init_process_group; without `backend` it is gloo.
    """
    count = max(processes(), world_size)
    if dist.is_initialized() or count == 1 and not _LAUNCHED <= os.environ.keys():
        return
    if backend == "nccl":
        warnings.warn("dist_backend is nccl, and the model stays on the CPU: ranks meet by gloo",
                      stacklevel=3)
        backend = None
    try:
        dist.init_process_group(backend or "gloo", timeout=timeout, init_method=init_method,
                                rank=rank, world_size=world_size)
    except ValueError as error:
        raise InvalidArgumentError(
            f"there are {count} processes, and they cannot meet ({error}): start them with "
            f"torchrun --nproc-per-node {count}, which sets RANK, WORLD_SIZE, MASTER_ADDR and "
            "MASTER_PORT, or give rank, world_size and init_method") from error
    except RuntimeError as error:  # of the network, such as a port that is taken
        place = init_method or ":".join(os.environ.get(name, "none") for name in (
            "MASTER_ADDR", "MASTER_PORT"))
        raise IoError(
            f"{count} process(es) cannot meet at {place} ({error}): see that rank 0 is there, and "
            "all others come, or set MASTER_PORT to a free port") from error


def group_of_all(required: bool | None) -> Any:
    """Returns the group of all ranks, or None for one process. It is made here unless `required`,
    DeepSpeed's `dist_init_required`, is False."""
    if required is not False:
        meet()
    if processes() == 1:
        return None
    if not dist.is_initialized():
        raise InvalidArgumentError(
            f"dist_init_required is False, there are {processes()} processes (WORLD_SIZE), and no "
            "process group: call init_distributed() first, or leave dist_init_required out")
    return dist.group.WORLD


def stage_of(document: Mapping[str, Any]) -> int:
    """Returns the stage of ZeRO that ranks train with. Raises for one that cuts parameters.

    State is cut over ranks in any stage, so that stage 0 is stage 1.
    """
    stage = section_of(document, "zero_optimization").get("stage") or 0
    if stage not in (0, 1, 2):
        raise NotSupportedError(
            f"zero_optimization.stage is {stage}, and the engine does not cut parameters over "
            "ranks: set it to 2 (gradients and state are cut), or train with `spillway train`")
    return max(1, stage)


def configuration_of(text: str, origin: str, ranks: int) -> tuple[Any, Mapping[str, Any]]:
    """Returns the configuration of each of so many ranks, and its document."""
    if ranks == 1:
        return native.Configuration(text, origin), parsed(text)
    try:
        document = parsed(text)
    except json.JSONDecodeError:
        native.Configuration(text, origin)  # tells what is wrong
        raise
    document = _of_one_rank(document, ranks)
    return native.Configuration(to_text(document), origin), document


def _of_one_rank(document: Mapping[str, Any], ranks: int) -> Mapping[str, Any]:
    """Returns a document whose `train_batch_size` is what each rank has of it. Raises unless it is
    what the other sizes and the ranks make it."""
    whole = document.get(_BATCH)
    if not isinstance(whole, int):
        return document
    given = {key: document[key] for key in _FACTORS if isinstance(document.get(key), int)}
    of_step = ranks * math.prod(given.values())
    is_whole = len(given) == len(_FACTORS)
    if of_step == 0 or whole % of_step != 0 or (is_whole and whole != of_step):
        raise InvalidArgumentError(
            f"{_BATCH} is {whole}, which is {'not' if is_whole else 'no multiple of'} {ranks} ranks"
            f"{''.join(f' x {key} {value}' for key, value in given.items())}: remove it, or change "
            "one of these")
    return {**document, _BATCH: whole // ranks}


def check_ranks(optimizer: OffloadedOptimizer, group: Any, document: Mapping[str, Any]) -> None:
    """Raises unless the program's own optimizer trains on all ranks, in the stage that the
    configuration names."""
    ranks = optimizer.ranks
    size, own = (1 if group is None else group.size()), 1 if ranks is None else ranks.size
    if own != size:
        raise InvalidArgumentError(
            f"optimizer= trains on {own} rank(s), and there are {size} processes: give it "
            "process_group=torch.distributed.group.WORLD")
    said = section_of(document, "zero_optimization").get("stage")
    if group is not None and said is not None and stage_of(document) != ranks.stage:
        raise InvalidArgumentError(
            f"zero_optimization.stage is {said}, and stage of optimizer= {ranks.stage}: leave one "
            "of the two out")


def share_others(ranks: Ranks, model: torch.nn.Module, optimizer: OffloadedOptimizer) -> None:
    """Makes parameters that the optimizer does not train those of the first rank. Those that it
    trains are that already, and so are those of a model that is streamed."""
    others = [(name, parameter) for name, parameter in model.named_parameters()
              if not optimizer.trains(parameter) and not is_streamed(parameter)]
    forms = [(name, parameter.shape, parameter.dtype) for name, parameter in others]
    ranks.announce(SHARES, checksum(forms)).details()
    for _, parameter in others:
        values = parameter.detach().contiguous()
        ranks.share_first(values)
        parameter.data.copy_(values)


def loader_of(data: Any, micro_batch: int, collate_fn: Callable[..., Any] | None,
              ranks: Ranks | None, *,
              sampler: Any = None, shuffles: bool = True,
              workers: int = 0) -> torch.utils.data.DataLoader[Any]:
    """Returns a loader of micro-batches, shuffled unless the program gives a sampler. Each rank has
    a part of the data."""
    if sampler is None and ranks is not None:
        sampler = torch.utils.data.distributed.DistributedSampler(
            data, ranks.size, ranks.rank, shuffle=shuffles)
    return torch.utils.data.DataLoader(
        data, batch_size=micro_batch, shuffle=shuffles and sampler is None, sampler=sampler,
        collate_fn=collate_fn, num_workers=workers)
