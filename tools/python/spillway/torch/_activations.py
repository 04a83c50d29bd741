"""What autograd saves for backward, in host memory meanwhile."""
from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import saved_tensors_hooks

from spillway.errors import DoesNotFitError, InvalidArgumentError
from spillway.torch._copies import Copy, Lanes, Started
from spillway.torch._pinned import pinned_memory
from spillway.torch._quantized import is_wrapper

#: A tensor of fewer bytes stays on the device: its copy would take longer than it spares.
LEAST = 4096


class HostMemory:
    """Hands out pieces of host memory, `limit` bytes at most, and takes them back.

    Pieces that came back serve those of the same size: a step in the steady state allocates none.
    They are pinned where a GPU copies to them.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used: int = 0  # bytes that somebody has
        self.most: int = 0
        self._held = 0      # bytes that are allocated
        self._free: dict[int, list[torch.Tensor]] = {}

    def take(self, size: int, device: torch.device) -> torch.Tensor:
        """Returns a piece of that many bytes, for copies from and to the device."""
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
            free = self._free[size] = [pinned_memory(size, device) if device.type == "cuda"
                                       else torch.empty(size, dtype=torch.uint8, device="cpu")]
            self._held += size
        self.used += size
        self.most = max(self.most, self.used)
        return free.pop()

    def give_back(self, piece: torch.Tensor) -> None:
        self.used -= piece.nbytes
        self._free.setdefault(piece.nbytes, []).append(piece)


class _Kept:
    """The bytes of one storage in host memory, as long as somebody may need them there."""

    def __init__(self, number: int, host: torch.Tensor, away: Copy, device: torch.device) -> None:
        self.number = number  # in the order in which they were saved
        self.host = host
        self.away = away  # the copy to `host`
        self.device = device
        self.uses = 0  # of autograd that are to come
        self.back: torch.Tensor | None = None  # on the device again
        self.coming: Started | None = None  # what fills `back`, until its first use

    def is_on_device(self) -> bool:
        """Whether the bytes have not left the device yet, or come back or came."""
        return self.back is not None or self.away.source is not None

    def leave(self) -> None:
        """Lets go of the bytes on the device."""
        self.back = self.coming = None
        self.away.is_wanted = False


def _end_of_kept(memory: HostMemory, host: torch.Tensor, away: Copy) -> None:
    away.is_wanted = False
    memory.give_back(host)


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
    """Takes what autograd saves in the forward passes of a model to host memory, whole storages at
    once, and brings them back in the reverse order, ahead of the backward pass.

    Passes wait for no copy while `window` bytes or fewer are on their way in a direction: that is
    as much memory of the device as copies take in each. What is small, a part of much larger
    memory, a parameter or a buffer stays where it is, and so does what the hooks of somebody else
    save, such as those of torch.utils.checkpoint within blocks.
    """

    def __init__(self, limit: int, window: int | None = None,
                 host_link_gbps: float | None = None) -> None:
        self.memory: HostMemory = HostMemory(limit)
        self.device_bytes: int = 0  # that were brought back and are there
        self.most_device_bytes: int = 0
        #: Bytes, by default the most that one block has saved so far.
        self.window: int = 0 if window is None else window
        self._learns_window = window is None
        self._saved_in_block: int | None = None  # None: outside of blocks
        self._staying: set[int] = set()
        self._newest: dict[int, tuple[weakref.ref, int, weakref.ref]] = {}  # by address
        self._depth = 0  # of forward passes of the model
        self._order: list[weakref.ref[_Kept]] = []
        self._coming: weakref.WeakSet[_Kept] = weakref.WeakSet()
        self._link = host_link_gbps
        self._lanes: dict[torch.device, Lanes] = {}

    def begin_block(self) -> None:
        self._saved_in_block = 0

    def end_block(self) -> None:
        self._saved_in_block = None

    def settle(self) -> None:
        """Returns once nothing is on its way: no memory of the device is held for it."""
        for lanes in self._lanes.values():
            lanes.away.settle()
            lanes.back.settle()

    def watch(self, model: torch.nn.Module) -> None:
        """Puts hooks around the forward passes of the model, which end with them also where a
        signal cuts one off."""
        forward: Callable[..., Any] = model.forward

        @functools.wraps(forward)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._depth == 0:
                self._staying = {tensor.untyped_storage().data_ptr()
                                 for tensor in (*model.parameters(), *model.buffers())
                                 if not is_wrapper(tensor)}
                self._newest.clear()
                self._renumber()
            self._depth += 1
            try:
                with saved_tensors_hooks(self._pack, self._unpack):
                    return forward(*args, **kwargs)
            finally:
                self._depth -= 1

        model.forward = watched

    def _renumber(self) -> None:
        alive = [kept for found in self._order if (kept := found()) is not None]
        for number, kept in enumerate(alive):
            kept.number = number
        self._order = [weakref.ref(kept) for kept in alive]

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | _View:
        if is_wrapper(tensor) or tensor.layout != torch.strided:
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
        kept = self._take_away(storage, tensor)
        self._newest[storage.data_ptr()] = (weakref.ref(storage), tensor._version,
                                            weakref.ref(kept))
        return kept

    def _take_away(self, storage: torch.UntypedStorage, tensor: torch.Tensor) -> _Kept:
        device, size = tensor.device, storage.nbytes()
        if device not in self._lanes:
            self._lanes[device] = Lanes(device, self._link)
        if self._learns_window and self._saved_in_block is not None:
            self._saved_in_block += size
            self.window = max(self.window, self._saved_in_block)
        host = self.memory.take(size, device)
        try:
            away = self._lanes[device].away.start(host, _bytes(storage, device), self.window,
                                                  watched=tensor.detach())
        except BaseException:
            self.memory.give_back(host)
            raise
        kept = _Kept(len(self._order), host, away, device)
        weakref.finalize(kept, _end_of_kept, self.memory, host, away)
        self._order.append(weakref.ref(kept))
        return kept

    def _unpack(self, saved: torch.Tensor | _View) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        kept = saved.kept
        back = self._bring(kept)
        kept.uses -= 1
        if kept.uses <= 0:
            kept.leave()
        self._fetch_ahead(kept)
        return back.view(saved.dtype).as_strided(saved.size, saved.stride, saved.offset)

    def _bring(self, kept: _Kept) -> torch.Tensor:
        """Returns the bytes on the device."""
        if kept.away.was_written():
            raise InvalidArgumentError(
                "a tensor that backward needs was written in place soon after the forward pass "
                "had saved it: write to a copy (.clone())")
        if kept.back is None and kept.away.source is not None:  # it has not left yet
            return kept.away.source
        if kept.back is None:
            self._fetch(kept)
        if kept.coming is not None:
            kept.coming.wait()
            kept.coming = None
            self._coming.discard(kept)
        return kept.back

    def _fetch(self, kept: _Kept) -> None:
        kept.back = torch.empty_like(kept.host, device=kept.device)
        copy = self._lanes[kept.device].back.start(kept.back, kept.host, self.window)
        copy.is_wanted = False
        kept.coming = copy.started
        self._coming.add(kept)
        self._count(kept.back.nbytes)
        weakref.finalize(kept.back.untyped_storage(), self._count, -kept.back.nbytes)

    def _fetch_ahead(self, used: _Kept) -> None:
        """Begins to bring back what was saved before `used`, as far as the window goes."""
        lanes = self._lanes[used.device]
        lanes.away.release_unwanted()
        lanes.back.release_unwanted()
        if not self.window:
            return
        # The farthest give way to nearer ones: nobody may go back through their graph.
        coming = sorted(self._coming, key=lambda kept: kept.number)
        ahead = lanes.away.bytes + sum(kept.host.nbytes for kept in coming)
        for place in range(used.number - 1, -1, -1):
            kept = self._order[place]()
            if kept is None or kept.uses <= 0 or kept.is_on_device():
                continue
            size = kept.host.nbytes
            while coming and coming[0].number < place and ahead + size > self.window:
                farthest = coming.pop(0)
                ahead -= farthest.host.nbytes
                self._coming.discard(farthest)
                farthest.leave()
            if ahead + size > (self.window if ahead else size):
                break
            ahead += size
            self._fetch(kept)

    def _count(self, size: int) -> None:
        self.device_bytes += size
        self.most_device_bytes = max(self.most_device_bytes, self.device_bytes)
