"""Copies between a device and host memory beside the passes, each direction in order."""
from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch


class Started(NamedTuple):
    """A copy under way."""

    is_over: Callable[[], bool]
    #: Orders what the calling thread does next on the device behind the copy.
    wait: Callable[[], object]


def move(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies bytes on the CPU, without the interpreter's lock."""
    ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)


class HostEngine:
    """A thread, which stands for a copy engine where the device is a part of host memory. It takes
    as long as a link of `gigabytes_per_second`, or as long as it takes."""

    def __init__(self, gigabytes_per_second: float | None) -> None:
        self._seconds_per_byte = 1e-9 / gigabytes_per_second if gigabytes_per_second else 0.0
        self._is_free_at = 0.0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spillway-copies")

    def start(self, target: torch.Tensor, source: torch.Tensor) -> Started:
        future = self._thread.submit(self._copy, time.monotonic(), target, source)
        return Started(future.done, future.result)

    def _copy(self, submitted: float, target: torch.Tensor, source: torch.Tensor) -> None:
        move(target, source)
        begins = max(self._is_free_at, submitted)
        self._is_free_at = begins + source.nbytes * self._seconds_per_byte
        time.sleep(max(self._is_free_at - time.monotonic(), 0.0))


class GpuEngine:
    """A stream of a GPU. Its copies follow what the current stream has launched before."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def start(self, target: torch.Tensor, source: torch.Tensor) -> Started:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            event = self._stream.record_event()
        return Started(event.query,
                       lambda: torch.cuda.current_stream(self._device).wait_event(event))


def engine_of(device: torch.device, host_link_gbps: float | None) -> HostEngine | GpuEngine:
    """Returns what copies to or from a device, in one direction."""
    return GpuEngine(device) if device.type == "cuda" else HostEngine(host_link_gbps)


class Copy:
    """Bytes on their way, both ends of which are held.

    `watched` has the memory of `source`, and its version tells of writes there.
    """

    def __init__(self, started: Started, target: torch.Tensor, source: torch.Tensor,
                 watched: torch.Tensor) -> None:
        self.started = started
        self.size = source.nbytes
        self._target: torch.Tensor | None = target
        self.source: torch.Tensor | None = source  # None: it is held no longer
        self.is_wanted = True  # the source, beyond the copy
        self._watched: torch.Tensor | None = watched
        self._version = watched._version
        self._written = False

    def was_written(self) -> bool:
        """Whether somebody has written to the source while it was held."""
        if self._watched is not None:
            self._written = self._watched._version != self._version
        return self._written

    def release(self) -> None:
        self.was_written()
        self._target = self.source = self._watched = None


class Lane:
    """Copies in one direction. Both ends of a copy stay allocated until it is over, or until the
    device's work is ordered behind it: their memory is then used again in order."""

    def __init__(self, engine: HostEngine | GpuEngine) -> None:
        self._engine = engine
        self._held: list[Copy] = []

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.settle()

    @property
    def bytes(self) -> int:
        """Number of bytes that are held at each end."""
        return sum(copy.size for copy in self._held)

    def start(self, target: torch.Tensor, source: torch.Tensor, limit: int,
              watched: torch.Tensor | None = None) -> Copy:
        """Starts a copy, behind waits that leave at most `limit` bytes held, or this copy alone."""
        while self._held and self.bytes + source.nbytes > limit:
            self._release_first()
        copy = Copy(self._engine.start(target, source), target, source,
                    source if watched is None else watched)
        self._held.append(copy)
        return copy

    def release_unwanted(self) -> None:
        """Lets go of copies that are over and whose sources nobody wants."""
        over = [copy for copy in self._held if not copy.is_wanted and copy.started.is_over()]
        self._held = [copy for copy in self._held if copy not in over]
        for copy in over:
            copy.release()

    def settle(self) -> None:
        """Waits for all copies, and lets go of them."""
        while self._held:
            self._release_first()

    def _release_first(self) -> None:
        copy = self._held[0]
        copy.started.wait()
        self._held = self._held[1:]
        copy.release()


class Lanes:
    """The lanes of a device, away from it and back."""

    def __init__(self, device: torch.device, host_link_gbps: float | None) -> None:
        self.away = Lane(engine_of(device, host_link_gbps))
        self.back = Lane(engine_of(device, host_link_gbps))
