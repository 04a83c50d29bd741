"""Memory that the ranks of one machine have in common: pages of a file without a name (memfd)."""
from __future__ import annotations

import fcntl
import mmap
import os
from typing import Any

import torch
import torch.distributed as dist

from spillway.errors import InternalError, NotSupportedError, OutOfMemoryError
from spillway.torch._ranks import REGISTERS, Ranks


def machine_id() -> str:
    """Returns what is equal for processes that can map each other's memory: the boot of a machine
    and a namespace of processes there."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"


class MachineMemory:
    """So many bytes that the ranks of a machine map, zeros at first.

    There are two mappings. What is written to `shared` is there for all of these ranks at once.
    What is written to `private` is this rank's alone, until `drop` makes it what is shared again;
    what nobody has written there takes no memory.
    """

    def __init__(self, ranks: Ranks, size: int) -> None:
        own = machine_id()
        every = _exchange(ranks, own)
        local = [rank for rank, each in enumerate(every) if each == own]
        self.local: list[int] = local          #: ranks of this machine
        self.place = local.index(ranks.rank)   #: of this rank among them
        self.machines = len(set(every))
        self.file = _open(ranks, local, size)
        try:
            with ranks.together(REGISTERS, 0):
                self._shared = _mapped(self.file, size, mmap.MAP_SHARED)
                self._private = _mapped(self.file, size, mmap.MAP_PRIVATE)
        except BaseException:
            self.close()
            raise

    def shared(self, first: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Returns elements that begin at a byte, and that all ranks of the machine see."""
        return torch.frombuffer(self._shared, dtype=dtype, count=elements, offset=first)

    def private(self, first: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Returns those, with what this rank alone has written there."""
        return torch.frombuffer(self._private, dtype=dtype, count=elements, offset=first)

    def drop(self, first: int, size: int) -> None:
        """Forgets what this rank alone has written in whole pages."""
        self._private.madvise(mmap.MADV_DONTNEED, first, size)

    def close(self) -> None:
        """Closes the file, whose pages stay as long as somebody maps them."""
        os.close(self.file)


def _mapped(file: int, size: int, flags: int) -> mmap.mmap:
    try:
        return mmap.mmap(file, size, flags=flags)
    except OSError as error:
        raise OutOfMemoryError(
            f"{size} bytes of memory that ranks share cannot be mapped ({error}): raise the limit "
            "of address space (ulimit -v), or train a smaller model") from error


def _exchange(ranks: Ranks, own: Any) -> list[Any]:
    every: list[Any] = [None] * ranks.size
    dist.all_gather_object(every, own, ranks.group)
    return every


def _open(ranks: Ranks, local: list[int], size: int) -> int:
    """Makes the file of a machine on its first rank, and opens it on the others."""
    file, failure = -1, ""
    try:
        if ranks.rank == local[0]:
            file = os.memfd_create("spillway", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(file, size)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS,
                        fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError as error:
        failure = f"{size} bytes of shared memory: {error}"
    offered = _exchange(ranks, (os.getpid(), file))
    try:
        if ranks.rank != local[0] and offered[local[0]][1] >= 0:
            file = os.open("/proc/{}/fd/{}".format(*offered[local[0]]), os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        failure = f"shared memory of rank {local[0]}: {error}"
    failures = _exchange(ranks, failure)  # until here the first rank must not close it
    if not any(failures):
        return file
    if file >= 0:
        os.close(file)
    rank = next(rank for rank, each in enumerate(failures) if each)
    if "Permission denied" in failures[rank]:
        raise NotSupportedError(
            f"rank {rank} may not open {failures[rank]}: run the ranks of a machine as one user, "
            "who may see their /proc, or leave offload_model out")
    raise InternalError(f"rank {rank} has no {failures[rank]}: free memory, or see why it is "
                        "refused, and start all ranks again")
