"""How the parameters of a streamed model lie in memory that the ranks of a machine share. Pure."""
from __future__ import annotations

import mmap
from typing import NamedTuple

from spillway.torch._registered import Registered
from spillway.torch._rounds import Bucket

PAGE = mmap.PAGESIZE


class Slot(NamedTuple):
    """Whole pages of one parameter, of no other one."""

    index: int   #: of the parameter
    number: int  #: of the slot, in their order in memory
    first: int   #: byte
    size: int    #: in bytes


class MachineLayout:
    """Parameters of no block first, then block by block: first the buckets of what is trained, then
    what is frozen. `leaf` elements are whole pages."""

    def __init__(self, entries: list[Registered], buckets: list[Bucket]) -> None:
        self.slots: list[Slot] = []
        self.starts: dict[Bucket, int] = {}  #: byte at which a bucket begins
        self.size = 0
        trained = sum(len(bucket.indices) for bucket in buckets)
        units = sorted({-1 if entry.unit is None else entry.unit for entry in entries})
        self.first_of_units = 0              #: byte behind parameters of no block
        for unit in units:
            wanted = None if unit < 0 else unit
            for bucket in buckets:
                if entries[bucket.indices[0]].unit == wanted:
                    self._add_bucket(bucket)
            for index in range(trained, len(entries)):
                if entries[index].unit == wanted:
                    size = -(-entries[index].parameter.nbytes // PAGE) * PAGE
                    self._add(index, size)
            if unit < 0:
                self.first_of_units = self.size
        self.slot_of = {slot.index: slot for slot in self.slots}  #: by parameter

    def _add_bucket(self, bucket: Bucket) -> None:
        """Adds its parameters, each as far as the next one, the last with what no rank uses."""
        self.starts[bucket] = self.size
        size = bucket.memory.element_size()
        ends = [*bucket.starts[1:], bucket.elements]
        for index, start, end in zip(bucket.indices, bucket.starts, ends, strict=True):
            self._add(index, (end - start) * size)

    def _add(self, index: int, size: int) -> None:
        self.slots.append(Slot(index, len(self.slots), self.size, size))
        self.size += size
