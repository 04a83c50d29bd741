"""Host memory that a GPU copies from and to, of the size that was asked for: torch rounds what it
pins up to a power of two, which is up to twice as much."""
from __future__ import annotations

import mmap

import torch


class _Pages(mmap.mmap):
    """Pages of this process that the driver has pinned, until nobody has them any more."""

    _runtime = None  # torch's, once the pages are pinned
    _address = 0

    def pin(self, address: int, device: torch.device) -> None:
        runtime = torch.cuda.cudart()
        with torch.cuda.device(device):  # else CUDA would be started on the one that is current
            torch.cuda.check_error(runtime.cudaHostRegister(address, len(self), 0))
        self._runtime, self._address = runtime, address

    def __del__(self) -> None:
        if self._runtime is not None:  # before the pages go
            self._runtime.cudaHostUnregister(self._address)


def pinned_memory(size: int, device: torch.device) -> torch.Tensor:
    """Returns that many bytes, which is at least one, in pages of their own. What they hold at
    first are zeros."""
    pages = _Pages(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_DONTFORK)  # else a child of fork() would copy what is pinned
    memory = torch.frombuffer(pages, dtype=torch.uint8)
    pages.pin(memory.data_ptr(), device)
    return memory
