"""The ranks of a process group of torch.distributed, which make the same calls in the same order.

Each exchange is announced: a rank that does something else is named, where without that both would
wait for the other. Tested with gloo; nccl takes the same path with CUDA tensors and has not run.
"""
from __future__ import annotations

import contextlib
import zlib
from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from spillway.errors import CorruptDataError, InternalError, InvalidArgumentError
from spillway.torch._registered import Registered

#: What ranks announce, with the number that must be the same on all.
CALLS = ("registers {} parameters", "begins backward pass {} of a step",
         "completes a step after {} backward passes",
         "calls step with settings (hyperparameters, max_norm, divisor, steps before, backward "
         "passes, what the program did to p.grad and to parameters) of checksum {:08x}",
         "calls state_dict, which reads parameter {}", "calls load",
         "calls initialize with parameters that nobody trains of checksum {:08x}",
         "saves a checkpoint (tag and part of checksum {:08x})",
         "loads a checkpoint (tag and part of checksum {:08x})",
         "measures the gradient of its parameter {}", "reads the gradient of its parameter {}",
         "waits for deferred updates of part {} of its parameters",
         "takes what the program has written into its parameter {}",
         "is done with the values of its parameters in memory of the machine")
(REGISTERS, BEGINS_PASS, COMPLETES, STEPS, READS, LOADS, SHARES, SAVES_TAG,
 LOADS_TAG, MEASURES, READS_GRADIENT, WAITS, WRITES, MEETS) = range(len(CALLS))


def checksum(value: Any) -> int:
    """Returns a number that two ranks share if their values print alike."""
    return zlib.crc32(repr(value).encode())


class Announcement:
    """What each rank says that it does; the exchange of it is under way."""

    def __init__(self, ranks: Ranks, call: int, number: int, detail: int) -> None:
        self._ranks = ranks
        own = torch.tensor([call, number, detail], device=ranks.device)
        self._all = torch.empty(ranks.size, 3, dtype=own.dtype, device=ranks.device)
        self._own = own  # it is read until the exchange is over
        self._work = dist.all_gather(list(self._all), own, ranks.group, async_op=True)

    def details(self) -> list[int]:
        """Returns the detail of each rank. Raises if a rank does something else."""
        self._ranks.finish(self._work, Ranks._announced)
        said = self._all.tolist()
        own = said[self._ranks.rank]
        for rank, (call, number, _) in enumerate(said):
            if [call, number] != own[:2]:
                raise InvalidArgumentError(
                    f"rank {rank} {CALLS[call].format(number)}, and rank {self._ranks.rank} "
                    f"{CALLS[own[0]].format(own[1])}: all ranks run the same loop, with as many "
                    "backward passes before each step; end them, and start them again")
        return [detail for _, _, detail in said]


class Ranks:
    """The processes of a group, counted from 0, and the stage of ZeRO that they train with."""

    # The last exchanges of this process, of announcements and of all others; see finish.
    _announced: ClassVar[deque[Any]] = deque(maxlen=64)
    _exchanged: ClassVar[deque[Any]] = deque(maxlen=2)

    def __init__(self, group: Any, stage: int) -> None:
        if stage not in (1, 2):
            raise InvalidArgumentError(
                f"stage is {stage}; with a process_group it is 1 (each rank keeps a part of the "
                "state) or 2 (and of the gradients)")
        if not dist.is_available() or not dist.is_initialized():
            raise InvalidArgumentError(
                f"process_group is {group}, and no process group is initialised: call "
                "torch.distributed.init_process_group first, in a program that torchrun starts, or "
                "leave process_group out")
        if not isinstance(group, dist.ProcessGroup):
            raise InvalidArgumentError(
                f"process_group is {group!r}, which is no group that this process belongs to; pass "
                "torch.distributed.group.WORLD, or make the optimizer on ranks of the group alone")
        self.group = group
        self.stage = stage
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)
        self.device: torch.device = torch.device(
            "cuda" if dist.get_backend(group) == "nccl" else "cpu")
        self._first = dist.get_global_rank(group, 0)

    def finish(self, work: Any, last: deque[Any] = _exchanged) -> None:
        """Waits for an exchange.

        The `last` ones are kept until the interpreter ends. Each of the group's threads lets go of
        one some time after its end. If that were the last hold on its tensors, the thread would
        take the interpreter's lock, which aborts a program that ends at that moment.
        """
        try:
            work.wait()
            last.append(work)
        except RuntimeError as error:
            raise InternalError(
                f"rank {self.rank} could not exchange with the other ranks ({error}): see why one "
                "of them ended or came too late, and start all of them again") from error

    def announce(self, call: int, number: int, detail: int = 0) -> Announcement:
        """Says what this rank does next, and does not wait for the others."""
        return Announcement(self, call, number, detail)

    @contextlib.contextmanager
    def together(self, call: int, number: int) -> Iterator[None]:
        """Surrounds what each rank does without the others: where one raises, all do."""
        try:
            yield
        except BaseException:
            self.announce(call, number, 1).details()
            raise
        for rank, failed in enumerate(self.announce(call, number).details()):
            if failed:
                raise InternalError(
                    f"rank {rank} has raised an error where it {CALLS[call].format(number)}: see "
                    "what that says, and call it again on all ranks")

    def check_same(self, entries: list[Registered], settings: dict[str, Any]) -> None:
        """Raises unless all ranks register the same parameters in the same order, with the same
        settings of their optimizers."""
        self.announce(REGISTERS, len(entries)).details()
        settings = {"stage": self.stage, **settings}
        own = [(entry.name, entry.group, tuple(entry.parameter.shape), str(entry.parameter.dtype),
                entry.unit) for entry in entries]
        every: list[Any] = [None] * self.size
        dist.all_gather_object(every, (settings, own), self.group)
        for rank, (chosen, theirs) in enumerate(every):
            for key, value in settings.items():
                if value != chosen[key]:
                    raise InvalidArgumentError(
                        f"{key} of the optimizer is {value} on rank {self.rank} and {chosen[key]} "
                        f"on rank {rank}: make the same optimizer on all ranks")
            for mine, other in zip(own, theirs, strict=True):
                if mine != other:
                    raise InvalidArgumentError(
                        "ranks register different parameters (name, group, shape, type): rank "
                        f"{self.rank} has {mine} where rank {rank} has {other}; make the same "
                        "model on all ranks, with its parameters in the same order")

    def check_loaded(self, folder: str, updates: int) -> None:
        """Raises unless what all ranks have loaded is of one step, as where a save was killed
        between two ranks it is not."""
        for rank, theirs in enumerate(self.announce(LOADS, 0, updates).details()):
            if theirs != updates:
                raise CorruptDataError(
                    f"{folder} is of step {updates}, and what rank {rank} has loaded of step "
                    f"{theirs}: load another checkpoint")

    def share_first(self, values: torch.Tensor) -> None:
        """Makes values those of the first rank."""
        self.finish(dist.broadcast(values, self._first, self.group, async_op=True))

    def exchange(self, target: torch.Tensor, source: torch.Tensor) -> Any:
        """Begins to send each rank its part of `source`, and to receive one from each."""
        return dist.all_to_all_single(target, source, group=self.group, async_op=True)

    def spread(self, whole: torch.Tensor) -> Any:
        """Begins to send this rank's part of `whole` to all, and to receive theirs."""
        parts = list(whole.view(self.size, -1))
        return dist.all_gather(parts, parts[self.rank], self.group, async_op=True)

    def all_of(self, own: torch.Tensor) -> torch.Tensor:
        """Returns [ranks, elements] of host memory from equally many elements of each."""
        own = own.to(self.device)
        every = torch.empty(self.size, own.numel(), dtype=own.dtype, device=self.device)
        self.finish(dist.all_gather(list(every), own, self.group, async_op=True))
        return every.cpu()

    def to_first(self, own: torch.Tensor) -> torch.Tensor | None:
        """Returns that to the first rank alone."""
        own = own.to(self.device)
        if self.rank > 0:
            self.finish(dist.gather(own, None, self._first, self.group, async_op=True))
            return None
        every = torch.empty(self.size, own.numel(), dtype=own.dtype, device=self.device)
        self.finish(dist.gather(own, list(every), self._first, self.group, async_op=True))
        return every.cpu()
