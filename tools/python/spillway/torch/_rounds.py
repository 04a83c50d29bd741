"""Gradients of ranks on their way to those that train them, while the backward pass goes on."""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from spillway._load import native
from spillway.torch._registered import Registered
from spillway.torch._ranks import BEGINS_PASS, Announcement, Ranks

_BUCKET_BYTES = 25 << 20  # as DDP's: long enough for a network, and short beside a model
_MOST_UNDER_WAY = 2       # buckets: one is sent while one is received


class Bucket:
    """Parameters in a row, in memory of which each rank trains an equal part.

    Parameters and parts begin on leaves of the norm, so that no bit depends on where they are cut.
    `deliver` is given [ranks, part], the gradients that ranks have sent.
    """

    def __init__(self, entries: list[Registered], first: int, size: int,
                 deliver: Callable[[Bucket, torch.Tensor], None]) -> None:
        self._deliver = deliver
        leaf = native.leaf_parameters
        self.indices = range(first, first + len(entries))
        self.starts = []
        self.leaves = 0
        for entry in entries:
            self.starts.append(self.leaves * leaf)
            self.leaves += -(-entry.parameter.numel() // leaf)
        self._counts = [entry.parameter.numel() for entry in entries]
        self.part = -(-self.leaves // size) * leaf  #: elements of each rank
        self.elements = size * self.part
        self.memory = entries[0].parameter.detach().new_empty(0)  # until it is given some

    def take(self, memory: torch.Tensor) -> None:
        """Makes `memory`, of `elements`, that of the bucket."""
        self.memory = memory

    def fill(self, memory: torch.Tensor, entries: list[Registered]) -> None:
        """Copies the values of parameters to where they lie in `memory`."""
        for index in self.indices:
            memory[slice(*self.span(index))] = entries[index].parameter.detach().reshape(-1)

    def span(self, index: int) -> tuple[int, int]:
        """Returns where a parameter begins and ends."""
        start = self.starts[index - self.indices.start]
        return start, start + self._counts[index - self.indices.start]

    def values(self, index: int) -> torch.Tensor:
        return self.memory[slice(*self.span(index))]

    def deliver(self, gradients: torch.Tensor) -> None:
        self._deliver(self, gradients)

    def cut(self, index: int, rank: int) -> tuple[int, int]:
        """Returns where the part of a rank in a parameter begins and ends; it may be empty."""
        start, end = self.span(index)
        first = min(max(start, rank * self.part), end)
        return first, max(first, min(end, (rank + 1) * self.part))


def make_buckets(entries: list[Registered], size: int,
                 deliver: Callable[[Bucket, torch.Tensor], None]) -> Iterator[Bucket]:
    """Makes buckets for parameters of one element type on one device, each of one unit."""
    first, total = 0, 0
    for index, entry in enumerate(entries):
        if index > first and (total + entry.parameter.nbytes > _BUCKET_BYTES
                              or entry.unit != entries[first].unit):
            yield Bucket(entries[first:index], first, size, deliver)
            first, total = index, 0
        total += entry.parameter.nbytes
    yield Bucket(entries[first:], first, size, deliver)


class _UnderWay(NamedTuple):
    announcement: Announcement | None  # of the pass that begins with it
    bucket: Bucket
    work: Any
    target: torch.Tensor
    source: torch.Tensor               # it is read until the work is over


class Rounds:
    """Sends the gradients of one pass after the other, in the order of buckets from the last to the
    first, whatever the order in which gradients come: all ranks make the same exchanges.

    Each rank gets the gradients of its part from every rank as they are, and adds them up in the
    order of ranks in fp32. They are as many bytes as a ring sends that sums them on their way, and
    rounds after each sum.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.passes = 0  #: of this step
        self._buckets: list[Bucket] = []
        self._senders: list[Callable[[], None]] = []  # of what waits for later passes
        self._sent: list[Bucket] = []  # in each pass
        self._filling: dict[Bucket, torch.Tensor] = {}
        self._under_way: deque[_UnderWay] = deque()
        self._begin()

    def add(self, buckets: list[Bucket], send_waiting: Callable[[], None]) -> None:
        """Takes more buckets, and what sends gradients that wait for those of later passes. Buckets
        that come within a step are sent alone in what is left of it: the others have had their
        passes."""
        self.finish()
        self._senders.append(send_waiting)
        self._buckets = [*self._buckets, *buckets]
        self._sent = buckets if self.passes > 0 else self._buckets
        self._begin()

    def _begin(self) -> None:
        self._next = len(self._sent) - 1
        self._came: set[tuple[Bucket, int]] = set()
        self._missing = {bucket: len(bucket.indices) for bucket in self._buckets}

    def put(self, bucket: Bucket, index: int, gradient: torch.Tensor) -> None:
        """Takes a gradient, and sends the buckets whose turn it is."""
        if (bucket, index) in self._came:
            self._end_pass()
        if bucket not in self._filling:
            self._filling[bucket] = torch.zeros_like(bucket.memory)
        start, end = bucket.span(index)
        self._filling[bucket][start:end].copy_(gradient.detach().view(-1))
        self._came.add((bucket, index))
        self._missing[bucket] -= 1
        while self._came and self._missing[self._sent[self._next]] == 0:
            self._send()

    def _end_pass(self) -> None:
        """Sends what a pass has left; gradients that did not come are zero."""
        while self._came:
            self._send()

    def finish(self) -> None:
        """Does that, and returns once all that was sent is delivered."""
        self._end_pass()
        self._settle(0)

    def complete(self) -> None:
        """Does that for all gradients that came, those that wait for later passes too."""
        for send in self._senders:
            send()
        self.finish()

    def forget(self) -> None:
        """Begins a step."""
        self.passes = 0
        self._sent = self._buckets
        self._begin()

    def _send(self) -> None:
        bucket = self._sent[self._next]
        announcement = None
        if bucket is self._sent[-1]:
            self.passes += 1
            announcement = self.ranks.announce(BEGINS_PASS, self.passes)
        source = self._filling.pop(bucket, None)
        if source is None:
            source = torch.zeros_like(bucket.memory)
        target = torch.empty_like(source)
        work = self.ranks.exchange(target, source)
        self._under_way.append(_UnderWay(announcement, bucket, work, target, source))
        self._next -= 1
        if self._next < 0:
            self._begin()
        self._settle(_MOST_UNDER_WAY)

    def _settle(self, most: int) -> None:
        """Waits until no more than `most` are under way."""
        while len(self._under_way) > most:
            oldest = self._under_way.popleft()
            if oldest.announcement is not None:
                oldest.announcement.details()
            self.ranks.finish(oldest.work)
            oldest.bucket.deliver(oldest.target.view(self.ranks.size, -1))
