"""Parameters of one element type that the ranks of a process group train together (ZeRO)."""
from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from spillway._load import native
from spillway.errors import InvalidArgumentError
from spillway.torch._pending import make_pending, make_settled, register
from spillway.torch._ranks import COMPLETES, READS, WAITS
from spillway.torch._registered import Registered
from spillway.torch._rounds import Bucket, Rounds, make_buckets
from spillway.torch._shard import Shard, in_memory
from spillway.torch._shared_gradients import Piece, SharedGradients


class Partition(SharedGradients):
    """Holds all parameters whole, and trains a part of them in a `Shard` of this rank.

    Parameters lie in buckets, and each rank trains an equal range of each bucket, which may begin
    and end within a parameter. So ranks have equally much state whatever sizes parameters have,
    which whole tensors would not give them, and all of them receive at the same time. Sums, norms
    and updates are those of one trainer that is given the gradients of all ranks in their order,
    with the same bits (but for the random roundings of the state format bf16). To the shard, the
    pieces of this rank are parameters, whose new values the ranks exchange after an update.
    """

    _without_exchange = "parameters keep values of before"  # what a deferred update leaves

    def __init__(self, parameters: list[Registered], frozen: list[Registered],
                 hyperparameters: dict[int, Any], options: Any, place: torch.device,
                 rounds: Rounds) -> None:
        super().__init__([*parameters, *frozen], len(parameters), options.gradients_per_step)
        self._rounds = rounds
        self._ranks = ranks = rounds.ranks
        ranks.check_same(self.entries, {
            "state_format": options.state_format, "deferred": options.defers_updates,
            "accumulation_steps": options.gradients_per_step or None, "missing": options.missing})
        self._needs_all = options.missing == "refuse"
        self._buckets = list(make_buckets(parameters, ranks.size, self._deliver))
        self._bucket_of = [bucket for bucket in self._buckets for _ in bucket.indices]
        self._allocate()
        self._pieces = {bucket: self._pieces_of(bucket) for bucket in self._buckets}
        if not any(self._pieces.values()):  # a trainer has at least one parameter
            start = ranks.rank * self._buckets[0].part
            self._pieces[self._buckets[0]] = [
                Piece(None, start, start + native.leaf_parameters)]
        if ranks.stage == 1:
            options.gradients_per_step = ranks.size  # sums of all passes
        else:
            options.gradients_per_step *= ranks.size
        self._own = self._make_own(hyperparameters, options, place)
        self._number_of = {piece.index: number for number, piece in enumerate(
            piece for pieces in self._pieces.values() for piece in pieces)}
        self._defers = options.defers_updates
        self._pending: set[Bucket] = set()  # whose update is decided, and not with all ranks
        self._begin_exchanges()
        self._hold([self._values_in_memory(index) for index in range(len(self.entries))])
        if self._defers:
            register(self._parameters[:self._trained], self)

    def _allocate(self) -> None:
        """Gives buckets memory with the values of the first rank."""
        for bucket in self._buckets:
            bucket.take(bucket.memory.new_zeros(bucket.elements))
            bucket.fill(bucket.memory, self.entries)
            self._ranks.share_first(bucket.memory)

    def _make_own(self, hyperparameters: dict[int, Any], options: Any,
                  place: torch.device) -> Shard:
        """Makes what trains the pieces of this rank."""
        return Shard([self._as_parameter(bucket, piece)
                      for bucket, pieces in self._pieces.items() for piece in pieces],
                     [], hyperparameters, options, place)

    def _values_in_memory(self, index: int) -> torch.Tensor:
        """Returns what a parameter's `data` refers to."""
        return self._bucket_of[index].values(index).view(self._parameters[index].shape)

    def _pieces_of(self, bucket: Bucket) -> list[Piece]:
        cuts = [Piece(index, *bucket.cut(index, self._ranks.rank)) for index in bucket.indices]
        return [cut for cut in cuts if cut.start < cut.end]

    def _as_parameter(self, bucket: Bucket, piece: Piece) -> Registered:
        # `data` has a version of its own: the program does not write when ranks exchange values.
        values = torch.nn.Parameter(bucket.memory[piece.start:piece.end].data)
        if piece.index is None:
            return Registered(values, self.entries[0].group, "padding")
        entry = self.entries[piece.index]
        start, _ = bucket.span(piece.index)
        return Registered(values, entry.group,
                          f"{entry.name}[{piece.start - start}:{piece.end - start}]")

    def release(self) -> None:
        """Ends the trainer of this rank's part. Nothing is exchanged: ranks end at any time."""
        if self._pending:
            warnings.warn("an optimizer of ranks has gone with a deferred update: "
                          f"{self._without_exchange}; call synchronize() or close() on all ranks "
                          "before", stacklevel=2)
        make_settled(self._parameters[:self._trained])
        self._own.release()
        super().release()

    def updates(self, index: int) -> int:
        """How often all parameters were updated."""
        return self.trainer.updates

    def set_updates(self, index: int, updates: int) -> None:
        """Sets that number, which is that of all: ranks skip no parameter."""
        self.trainer.updates = updates

    @property
    def trainer(self) -> Any:
        return self._own.trainer

    @property
    def groups(self) -> list[int]:
        return self._own.groups

    # Steps.

    def passes(self) -> int:
        """Number of backward passes of this rank since the last step."""
        return max(self._received)

    def norm(self, divisor: float) -> float:
        """Returns the norm of the mean of all ranks' gradients, which are complete."""
        self._check_complete()
        return native.norm_of(self._leaf_sums(), self._elements) / (divisor * self._ranks.size)

    def _check_complete(self) -> None:
        """Raises on all ranks if a parameter lacks a gradient on one of them."""
        least = max(self._most, 1)
        lacks = [index for index, count in enumerate(self._received) if count < least]
        first = lacks[0] if lacks and self._needs_all else -1
        missing = self._ranks.announce(COMPLETES, self._rounds.passes, first).details()
        for rank, index in enumerate(missing):
            if index >= 0:
                raise InvalidArgumentError(
                    f"{self.entries[index].name} has fewer than the {least} gradient(s) of this "
                    f"step on rank {rank}; the gradients of the step are forgotten: run backward "
                    "for it on every rank, leave parameters without gradients out, or make the "
                    'optimizer with missing="zero"')

    def step(self, divisor: float, max_norm: float, norm: float | None) -> tuple[float, bool]:
        """Updates with the mean of all ranks' gradients, whose norm is given."""
        for index in range(self._trained):
            self._bring(index)
        norm, skipped = self._own.step(divisor * self._ranks.size, max_norm, norm)
        self.end_step(self._forget)
        if not skipped:
            if not self._defers:
                self.publish()
            self._note_update(all_of_them=True)
            if self._defers:
                self._pending = set(self._buckets)
                make_pending(self._parameters[:self._trained])
        return norm, skipped

    def publish(self) -> None:
        """Makes the parameters of all ranks what their masters are."""
        self._pending.clear()
        self._share(self._buckets)

    def _share(self, buckets: list[Bucket]) -> None:
        works = []
        for bucket in buckets:
            for piece in self._pieces[bucket]:
                bucket.memory[piece.start:piece.end].copy_(self._values(piece))
            works.append(self._ranks.spread(bucket.memory))
        for work in works:
            self._ranks.finish(work)

    # Updates that are deferred: ranks exchange a bucket when one of its parameters is waited for.

    def is_deciding(self, index: int) -> bool:
        """Whether new values of a parameter are not with all ranks yet."""
        return self._bucket_of[index] in self._pending

    def wait(self, index: int) -> None:
        """Waits for the update of a parameter that was decided, as all ranks do."""
        self._wait_for([self._bucket_of[index]])

    def wait_all(self) -> None:
        """Does that for all of them."""
        self._wait_for(self._buckets)

    def finish(self) -> None:
        """Does that too, where the optimizer is closed on all ranks."""
        self.wait_all()

    def _wait_for(self, buckets: list[Bucket]) -> None:
        for bucket in buckets:
            if bucket not in self._pending:
                continue
            self._ranks.announce(WAITS, self._buckets.index(bucket)).details()
            for piece in self._pieces[bucket]:
                self._own.wait(self._number_of[piece.index])
            self._pending.discard(bucket)
            make_settled(self._parameters[index] for index in bucket.indices)
            self._share([bucket])
            self._note_applied(bucket.indices)

    def _values(self, piece: Piece) -> torch.Tensor:
        return self._own.entries[self._number_of[piece.index]].parameter.data

    # State.

    def _bring(self, index: int) -> int | None:
        """Gives what this rank trains of a parameter the values that the program may have written;
        returns its number."""
        self.wait(index)
        if (own := self._number_of.get(index)) is not None:
            bucket = self._bucket_of[index]
            start, end = bucket.cut(index, self._ranks.rank)
            self._own.entries[own].parameter.data.copy_(bucket.memory[start:end])
        return own

    def _hides_writes(self, index: int) -> bool:
        return self._parameters[index].device.type != "cpu"

    def _take_back(self, index: int) -> None:
        self.wait(index)
        super()._take_back(index)

    def take_write(self, index: int) -> None:
        """Makes the master follow, also where torch has kept no count of a write."""
        super().take_write(index)
        self._bring(index)

    def _take_values(self, index: int, changed: bool) -> None:
        if (own := self._bring(index)) is not None:
            self._own.trainer.wait(own)
            self._own._take_values(own, changed)

    def read(self, index: int, master: bool, m: bool, v: bool,
             allocate: Callable[[int], torch.Tensor]) -> list[torch.Tensor | None]:
        """State of a parameter as fp32 tensors of its shape, on the first rank; None elsewhere, and
        for what is not wanted. All ranks call it."""
        self._ranks.announce(READS, index).details()
        cuts = self._cuts(index)
        longest = max(end - start for start, end in cuts)
        start, end = cuts[self._ranks.rank]
        mine = in_memory(3 * longest).zero_().view(3, longest)
        wanted = (master, m, v)
        if start < end:
            read = self._own.read(self._number_of[index], *wanted, in_memory)
            for row, values in zip(mine, read, strict=True):
                if values is not None:
                    row[:end - start] = values
        every = [self._ranks.to_first(row) if want else None
                 for row, want in zip(mine, wanted, strict=True)]
        return [None if values is None else self._whole(index, values, cuts, allocate)
                for values in every]

    def write(self, index: int, master: torch.Tensor | None, m: torch.Tensor | None,
              v: torch.Tensor | None) -> None:
        """Sets the state of this rank's part of a parameter, from that of the whole."""
        self.check_state(index, master, m, v)
        self.take_write(index)
        if (own := self._number_of.get(index)) is None:
            return
        bucket = self._bucket_of[index]
        first, _ = bucket.span(index)
        start, end = bucket.cut(index, self._ranks.rank)
        self._own.write(own, *(None if tensor is None else
                               tensor.detach().reshape(-1)[start - first:end - first]
                               for tensor in (master, m, v)))

    def load(self, folder: str) -> None:
        """Takes a checkpoint of this rank's part; all parameters follow with `publish`."""
        self.take_writes()
        self._own.load(folder)
