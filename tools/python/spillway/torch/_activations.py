"""What autograd saves for backward, in host memory meanwhile."""
from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import saved_tensors_hooks

from spillway.errors import DoesNotFitError

#: A tensor of fewer bytes stays on the device: its copy would take longer than it spares.
LEAST = 4096


class HostMemory:
    """Hands out pieces of host memory, `limit` bytes at most, and takes them back.

    Pieces that came back serve those of the same size: a step in the steady state allocates none.
    They are pinned where a GPU copies to them.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = self.most = 0  # bytes that somebody has
        self._held = 0             # bytes that are allocated
        self._free: dict[int, list[torch.Tensor]] = {}

    def take(self, size: int, pinned: bool) -> torch.Tensor:
        """Returns a piece of that many bytes."""
        free = self._free.get(size)
        if not free:
            if self._held + size > self.limit:
                self._free.clear()
                self._held = self.used
            if self._held + size > self.limit:
                raise DoesNotFitError(
                    f"does not fit: saved activations take {self.used} bytes, {size} more are "
                    f"needed, and activation_memory is {self.limit}; give more, use smaller "
                    "batches, or recompute blocks (torch.utils.checkpoint)")
            self._held += size
            free = self._free[size] = [torch.empty(size, dtype=torch.uint8, pin_memory=pinned)]
        self.used += size
        self.most = max(self.most, self.used)
        return free.pop()

    def give_back(self, piece: torch.Tensor) -> None:
        self.used -= piece.nbytes
        self._free.setdefault(piece.nbytes, []).append(piece)


class _Kept:
    """The bytes of one storage in host memory, as long as somebody may need them there."""

    def __init__(self, memory: HostMemory, source: torch.UntypedStorage,
                 device: torch.device) -> None:
        self.device = device
        self.uses = 0  # of autograd that are to come
        self.back: torch.Tensor | None = None
        self.host = memory.take(source.nbytes(), device.type == "cuda")
        weakref.finalize(self, memory.give_back, self.host)
        self.host.copy_(_bytes(source, device), non_blocking=True)


class _View(NamedTuple):
    """What autograd saves: a tensor in kept bytes."""

    kept: _Kept
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


def _bytes(storage: torch.UntypedStorage, device: torch.device) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


class Activations:
    """Takes what autograd saves in the forward passes of `model` to host memory, whole storages at
    once, and brings each back when backward needs it first.

    Copies are on the stream of the passes, so that memory is used again in order. What is small,
    a part of much larger memory, a parameter or a buffer stays where it is, and so does what the
    hooks of somebody else save, such as those of torch.utils.checkpoint within blocks.
    """

    def __init__(self, model: torch.nn.Module, limit: int) -> None:
        self.memory = HostMemory(limit)
        self.device_bytes = 0  # that were brought back and are there
        self.most_device_bytes = 0
        self._staying: set[int] = set()
        self._newest: dict[int, tuple[weakref.ref, int, weakref.ref]] = {}  # by address
        self._contexts: list[saved_tensors_hooks] = []
        model.register_forward_pre_hook(self._begin)
        model.register_forward_hook(self._end, always_call=True)

    def _begin(self, model: torch.nn.Module, _args: Any) -> None:
        if not self._contexts:
            self._staying = {tensor.untyped_storage().data_ptr()
                             for tensor in (*model.parameters(), *model.buffers())}
            self._newest.clear()
        context = saved_tensors_hooks(self._pack, self._unpack)
        context.__enter__()
        self._contexts.append(context)

    def _end(self, _model: torch.nn.Module, _args: Any, _output: Any) -> None:
        if self._contexts:
            self._contexts.pop().__exit__(None, None, None)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | _View:
        if tensor.layout != torch.strided:
            return tensor
        storage = tensor.untyped_storage()
        if (tensor.nbytes < LEAST or storage.nbytes() > 4 * tensor.nbytes
                or storage.data_ptr() in self._staying):
            return tensor
        kept = self._kept_of(storage, tensor)
        kept.uses += 1
        return _View(kept, tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset())

    def _kept_of(self, storage: torch.UntypedStorage, tensor: torch.Tensor) -> _Kept:
        """Finds what is kept of the storage already, as it is now."""
        if (newest := self._newest.get(storage.data_ptr())) is not None:
            source, version, found = newest
            kept = found()
            if kept is not None and source() is storage and version == tensor._version:
                return kept
        kept = _Kept(self.memory, storage, tensor.device)
        self._newest[storage.data_ptr()] = (weakref.ref(storage), tensor._version,
                                            weakref.ref(kept))
        return kept

    def _unpack(self, saved: torch.Tensor | _View) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        kept = saved.kept
        back = kept.back
        if back is None:
            back = kept.host.to(kept.device, non_blocking=True, copy=True)
            self._count(back.nbytes)
            weakref.finalize(back.untyped_storage(), self._count, -back.nbytes)
        kept.uses -= 1
        kept.back = back if kept.uses > 0 else None
        return back.view(saved.dtype).as_strided(saved.size, saved.stride, saved.offset)

    def _count(self, size: int) -> None:
        self.device_bytes += size
        self.most_device_bytes = max(self.most_device_bytes, self.device_bytes)
