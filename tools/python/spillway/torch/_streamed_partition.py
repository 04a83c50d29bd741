"""Parameters of a streamed model that ranks train together, with one copy of them a machine."""
from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable
from typing import Any

import torch

from spillway._load import native
from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._device import device_of
from spillway.torch._layout import flattened
from spillway.torch._machine import MachineMemory
from spillway.torch._machine_layout import MachineLayout
from spillway.torch._partition import Partition
from spillway.torch._ranks import MEETS, REGISTERS, WRITES, checksum
from spillway.torch._registered import Registered
from spillway.torch._rounds import Bucket, Rounds
from spillway.torch._shard import Shard, in_memory

# Units: the viewer has as many slots at most, and the entered unit is in one that another has left.
_UPLOADED_AHEAD = native.most_unit_slots


class StreamedPartition(Partition):
    """A `Partition` whose parameters lie in memory that the ranks of a machine map.

    Blocks go from there to the device of each rank, through a trainer that trains none of them: the
    viewer. Each rank updates its part there. What a program writes is its own rank's until all
    ranks have noticed it, so that `p.mul_(0.5)` on each of them is done once. `entries` has
    parameters of no block first, then those of blocks in their order; what is of no block is on the
    device too.
    """

    _without_exchange = ("parameters of blocks may have the values after it, and others those of "
                         "before, so load a checkpoint")

    def __init__(self, parameters: list[Registered], frozen: list[Registered],
                 hyperparameters: dict[int, Any], options: Any, place: torch.device,
                 rounds: Rounds, streaming: Any) -> None:
        if rounds.ranks.device.type != "cpu":
            raise NotSupportedError(
                "offload_model with a process_group of nccl, which exchanges no host memory: give "
                'process_group=torch.distributed.new_group(backend="gloo")')
        self._streaming, self._place = streaming, device_of(place)
        self._unshared: set[int] = set()  # what the program has written, and this rank alone has
        self._uploads_are_old = False     # values have changed since the last pass
        in_order = sorted(range(len(parameters)), key=lambda index: _unit(parameters[index]))
        # In the order of registration, in which norms are added up.
        self._registered = sorted(range(len(parameters)), key=in_order.__getitem__)
        with contextlib.ExitStack() as self._until_made:
            super().__init__([parameters[number] for number in in_order], frozen, hyperparameters,
                             options, torch.device("cpu"), rounds)

    # Where values lie.

    def _allocate(self) -> None:
        self._layout = MachineLayout(self.entries, self._buckets)
        self._memory_of_machine = memory = MachineMemory(self._ranks, self._layout.size)
        self._until_made.callback(memory.close)
        for bucket in self._buckets:
            bucket.take(memory.shared(self._layout.starts[bucket], bucket.elements,
                                      bucket.memory.dtype))
            self._fill(bucket.memory, lambda values, bucket=bucket:
                       bucket.fill(values, self.entries))
        for index in range(self._trained, len(self.entries)):
            self._fill(self._shared(index).view(torch.uint8), lambda values, index=index:
                       values.copy_(self._raw(index)))
        self._meet()
        for index, entry in enumerate(self.entries):
            if entry.unit is not None:  # what it was is free, before more memory is taken
                entry.parameter.data = self._private(index)
        native.release_freed_memory()
        with self._ranks.together(REGISTERS, len(self.entries)):
            self._viewer = self._make_viewer()

    def _fill(self, shared: torch.Tensor, write: Callable[[torch.Tensor], Any]) -> None:
        """Gives a machine the values of the first rank."""
        if self._memory_of_machine.machines == 1:
            if self._ranks.rank == 0:
                write(shared)
            return
        values = torch.zeros_like(shared)
        if self._ranks.rank == 0:
            write(values)
        self._ranks.share_first(values)
        if self._memory_of_machine.place == 0:
            shared.copy_(values)

    def _make_viewer(self) -> Any:
        """Makes the trainer through which parameters pass, which has one of its own to train."""
        layout, memory = self._layout, self._memory_of_machine
        options = native.TrainerOptions()
        group = native.Group()
        group.optimizer = "sgd"
        options.groups, options.dtype, options.threads = [group], "fp32", 1
        options.gradients_per_step = 0
        options.tile_parameters = native.leaf_parameters
        options.device_memory = self._streaming.device_memory
        options.host_link_gbps = self._streaming.host_link_gbps
        options.share("frozen", memory.file,
                      [(layout.first_of_units, layout.size - layout.first_of_units)])
        self._place.configure(options)
        with self._place.current():
            viewer = native.Trainer(options, [("no parameter", 0, in_memory(1).zero_(), None)], [
                (self.entries[slot.index].name, slot.size, self.entries[slot.index].unit)
                for slot in layout.slots])
        for slot in layout.slots:  # those of units are there
            if self.entries[slot.index].unit is None:
                torch.from_dlpack(viewer.frozen_values(slot.number)).copy_(
                    memory.shared(slot.first, slot.size, torch.uint8))
        return viewer

    def _make_own(self, hyperparameters: dict[int, Any], options: Any,
                  place: torch.device) -> Shard:
        """Makes what trains the pieces of this rank where they lie."""
        leaf, parts = native.leaf_parameters, []
        for bucket, pieces in self._pieces.items():
            if pieces:
                size = bucket.memory.element_size()
                first = pieces[0].start
                end = first + -(-(pieces[-1].end - first) // leaf) * leaf
                parts.append((self._layout.starts[bucket] + first * size, (end - first) * size))
        options.share("parameters", self._memory_of_machine.file, parts)
        with self._ranks.together(REGISTERS, len(self.entries)):
            return super()._make_own(hyperparameters, options, place)

    def _raw(self, index: int) -> torch.Tensor:
        """The bytes of a parameter as the program sees it."""
        return flattened(self._parameters[index].detach(), None).view(torch.uint8)

    def _shared(self, index: int) -> torch.Tensor:
        """The elements of a parameter in memory of the machine."""
        parameter = self._parameters[index]
        return self._memory_of_machine.shared(self._layout.slot_of[index].first, parameter.numel(),
                                              parameter.dtype)

    def _private(self, index: int) -> torch.Tensor:
        """A parameter as this rank sees it."""
        parameter = self._parameters[index]
        return self._memory_of_machine.private(
            self._layout.slot_of[index].first, parameter.numel(),
            parameter.dtype).view(parameter.shape)

    def _of_viewer(self, index: int, values: Any) -> torch.Tensor:
        parameter = self._parameters[index]
        return torch.from_dlpack(values)[:parameter.nbytes].view(parameter.dtype).view(
            parameter.shape)

    def _values_in_memory(self, index: int) -> torch.Tensor:
        if self.entries[index].unit is not None:
            return self._private(index)
        number = self._layout.slot_of[index].number
        return self._of_viewer(index, self._viewer.frozen_values(number))

    # Passes.

    def device_view(self, index: int) -> torch.Tensor:
        """Where a parameter is while its unit is entered."""
        number = self._layout.slot_of[index].number
        return self._of_viewer(index, self._viewer.device_frozen(number))

    def enter(self, unit: int, backward: bool) -> None:
        """Brings a unit to the device for a pass, and waits for deferred updates of it and of those
        that may be uploaded ahead."""
        if self._pending:
            last = self._streaming.units() if backward else unit + _UPLOADED_AHEAD
            first = 0 if backward else unit
            self._wait_for([bucket for bucket in self._buckets
                            if first <= _unit(self.entries[bucket.indices[0]]) <= last])
        if self._uploads_are_old:
            self._viewer.forget_uploads()
            self._uploads_are_old = False
        self._viewer.enter(unit, backward)

    def leave(self, unit: int) -> None:
        """Ends the pass of a unit, whose memory is another unit's once torch has read it."""
        self._viewer.leave(unit, self._place.stream())

    def forget_uploads(self) -> None:
        """Makes passes that begin from now on read what was written in memory of the machine."""
        self._viewer.forget_uploads()

    def reopen(self) -> None:
        """Takes more gradients: what trains them does by itself."""

    def end_updates(self, indices: list[int]) -> None:
        """Notes that updates are over: where a unit is entered, it is noted already."""

    def release(self) -> None:
        """Ends both trainers. Nothing is exchanged: ranks end at any time."""
        del self._viewer
        super().release()

    # Steps.

    def step(self, divisor: float, max_norm: float, norm: float | None) -> tuple[float, bool]:
        """Updates with the mean of all ranks' gradients, whose norm is given."""
        self._uploads_are_old = True
        return super().step(divisor, max_norm, norm)

    def publish(self) -> None:
        """Makes the parameters of all ranks what their masters are."""
        super().publish()
        self._uploads_are_old = True

    def wait(self, index: int) -> None:
        """Waits for the update of a parameter that was decided, as all ranks do."""
        if index < self._trained:
            super().wait(index)

    def is_deciding(self, index: int) -> bool:
        """Whether new values of a parameter are not with all ranks yet."""
        return index < self._trained and super().is_deciding(index)

    def norm(self, divisor: float) -> float:
        """Returns the norm of the mean of all ranks' gradients, which are complete."""
        self._check_complete()
        sums = self._leaf_sums()
        in_order = torch.cat([sums[self._leaves[index]:self._leaves[index + 1]]
                              for index in self._registered])
        elements = [self._elements[index] for index in self._registered]
        return native.norm_of(in_order, elements) / (divisor * self._ranks.size)

    def _share(self, buckets: list[Bucket]) -> None:
        """Makes what ranks have updated that of all machines and devices."""
        if self._memory_of_machine.machines > 1:
            for bucket in buckets:
                self._share_with_machines(bucket)
        self._meet()
        for bucket in buckets:
            for index in bucket.indices:
                if self.entries[index].unit is None:
                    self._memory[index].view(-1).copy_(bucket.values(index))
                elif index not in self._unshared and not self.is_written(index):
                    self._drop_private(index)  # what was written and nobody noticed

    def _drop_private(self, index: int) -> None:
        slot = self._layout.slot_of[index]
        self._memory_of_machine.drop(slot.first, slot.size)

    def _share_with_machines(self, bucket: Bucket) -> None:
        mine, part = self._memory_of_machine, bucket.part
        every = torch.empty_like(bucket.memory)
        own = slice(self._ranks.rank * part, (self._ranks.rank + 1) * part)
        every[own] = bucket.memory[own]
        self._ranks.finish(self._ranks.spread(every))
        if mine.place == 0:
            for rank in set(range(self._ranks.size)) - set(mine.local):
                other = slice(rank * part, (rank + 1) * part)
                bucket.memory[other] = every[other]

    def _meet(self) -> None:
        """Waits until all ranks have come so far."""
        self._ranks.announce(MEETS, 0).details()

    # What the program writes.

    def _hides_writes(self, index: int) -> bool:
        return True

    def _note(self, index: int) -> None:
        super()._note(index)
        self._unshared.add(index)

    def notice_writes(self, unit: int | None = None) -> bool:
        """Notices what the program has written into parameters, as all ranks do."""
        old = super().notice_writes(unit)
        self._share_writes()
        return old

    def _share_writes(self) -> None:
        """Makes what all ranks have written that of the machine. Raises if it is not the same."""
        if not self._unshared:
            return
        written = sorted(self._unshared)
        own = checksum([(index, _checksum_of(self._memory[index])) for index in written])
        for rank, theirs in enumerate(self._ranks.announce(WRITES, written[0], own).details()):
            if theirs != own:
                raise InvalidArgumentError(
                    f"{self.entries[written[0]].name}, or a parameter after it, was written, and "
                    f"rank {rank} has written other values or parameters than rank "
                    f"{self._ranks.rank}: ranks share one copy; write the same values on all ranks,"
                    " such as those of a file or of torch.manual_seed")
        for index in written:
            self._copy_part(self._shared(index), self._memory[index].reshape(-1))
        self._meet()
        for index in written:
            if self.entries[index].unit is not None:
                self._drop_private(index)
        self._unshared.clear()

    def _copy_part(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copies what this rank copies of the ranks of a machine."""
        memory = self._memory_of_machine
        part = -(-target.numel() // len(memory.local))
        own = slice(memory.place * part, (memory.place + 1) * part)
        target[own] = source[own]

    def _bring(self, index: int) -> int | None:
        """Returns the number of what this rank trains of a parameter, whose values are there."""
        self.wait(index)
        self._share_writes()
        return self._number_of.get(index)

    def write(self, index: int, master: torch.Tensor | None, m: torch.Tensor | None,
              v: torch.Tensor | None) -> None:
        """Sets the state of this rank's part of a parameter, from that of the whole."""
        self._meet()  # nobody reads what changes now
        super().write(index, master, m, v)


def _unit(entry: Registered) -> int:
    return -1 if entry.unit is None else entry.unit


def _checksum_of(values: torch.Tensor) -> int:
    return zlib.crc32(values.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
