"""Parameters of one element type that the ranks of a process group train together (ZeRO)."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from spillway._load import native
from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._handed_over import in_backward
from spillway.torch._held import Held
from spillway.torch._ranks import COMPLETES, MEASURES, READS, READS_GRADIENT, checksum
from spillway.torch._registered import Registered
from spillway.torch._rounds import Bucket, Rounds, make_buckets
from spillway.torch._shard import Shard, in_memory


class _Piece(NamedTuple):
    """A part of a parameter that this rank trains."""

    index: int | None  # of the parameter; None: padding
    start: int         # in the memory of its bucket
    end: int


class Partition(Held):
    """Holds all parameters whole, and trains a part of them in a `Shard` of this rank.

    Parameters lie in buckets, and each rank trains an equal range of each bucket, which may begin
    and end within a parameter. So ranks have equally much state whatever sizes parameters have,
    which whole tensors would not give them, and all of them receive at the same time. Sums, norms
    and updates are those of one trainer that is given the gradients of all ranks in their order,
    with the same bits (but for the random roundings of the state format bf16). To the shard, the
    pieces of this rank are parameters, whose new values the ranks exchange after an update.
    """

    def __init__(self, entries: list[Registered], hyperparameters: dict[int, Any], options: Any,
                 place: torch.device, rounds: Rounds) -> None:
        super().__init__(entries, len(entries), options.gradients_per_step)
        self._rounds = rounds
        self._ranks = ranks = rounds.ranks
        ranks.check_same(entries)
        self._needs_all = options.missing == "refuse"
        self._waiting: dict[int, torch.Tensor] = {}  # sums of passes, of stage 1
        self._sums: torch.Tensor | None = None  # of the leaves of all ranks, where they are known
        self._changes: dict[int, list[Any]] = {}  # which the program has made to gradients
        self._elements = [entry.parameter.numel() for entry in entries]
        self._buckets = list(make_buckets(entries, ranks.size, self._deliver))
        self._bucket_of = [bucket for bucket in self._buckets for _ in bucket.indices]
        for bucket in self._buckets:
            ranks.share_first(bucket.memory)
        self._pieces = {bucket: self._pieces_of(bucket) for bucket in self._buckets}
        if not any(self._pieces.values()):  # a trainer has at least one parameter
            start = ranks.rank * self._buckets[0].part
            self._pieces[self._buckets[0]] = [
                _Piece(None, start, start + native.leaf_parameters)]
        if ranks.stage == 1:
            options.gradients_per_step = ranks.size  # sums of all passes
        else:
            options.gradients_per_step *= ranks.size
        self._own = Shard([self._as_parameter(bucket, piece)
                           for bucket, pieces in self._pieces.items() for piece in pieces],
                          [], hyperparameters, options, place)
        self._number_of = {piece.index: number for number, piece in enumerate(
            piece for pieces in self._pieces.values() for piece in pieces)}
        self._leaves = [0]  # of the norm: where those of a parameter begin
        for elements in self._elements:
            self._leaves.append(self._leaves[-1] - (-elements // native.leaf_parameters))
        rounds.add(self._buckets, self._send_waiting)
        self._hold([self._bucket_of[index].values(index).view(entry.parameter.shape)
                    for index, entry in enumerate(entries)])

    def _pieces_of(self, bucket: Bucket) -> list[_Piece]:
        cuts = [_Piece(index, *bucket.cut(index, self._ranks.rank)) for index in bucket.indices]
        return [cut for cut in cuts if cut.start < cut.end]

    def _as_parameter(self, bucket: Bucket, piece: _Piece) -> Registered:
        # `data` has a version of its own: the program does not write when ranks exchange values.
        values = torch.nn.Parameter(bucket.memory[piece.start:piece.end].data)
        if piece.index is None:
            return Registered(values, self.entries[0].group, "padding")
        entry = self.entries[piece.index]
        start, _ = bucket.span(piece.index)
        return Registered(values, entry.group,
                          f"{entry.name}[{piece.start - start}:{piece.end - start}]")

    def release(self) -> None:
        """Ends the trainer of this rank's part."""
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

    # Gradients.

    def _hand_over(self, index: int, gradient: torch.Tensor) -> bool:
        self._sums = None
        gradient = gradient.detach()
        if (before := self._waiting.pop(index, None)) is not None:
            gradient = before + gradient  # as torch adds them
        came = self._received[index] + 1
        if self._ranks.stage == 1 and (self._most == 0 or came < self._most):
            self._waiting[index] = gradient
        else:
            self._put(index, gradient)
        return True

    _accumulate = _hand_over

    def _put(self, index: int, gradient: torch.Tensor) -> None:
        self._rounds.put(self._bucket_of[index], index, gradient.contiguous())

    def _send_waiting(self) -> None:
        for index in sorted(self._waiting, reverse=True):
            self._put(index, self._waiting.pop(index))

    def add_gradients(self) -> None:
        """Hands over what no backward pass did, and sums that wait for the step."""
        super().add_gradients()
        self._send_waiting()

    def _deliver(self, bucket: Bucket, gradients: torch.Tensor) -> None:
        """Adds what the ranks have sent, in their order."""
        first = self._ranks.rank * bucket.part
        for of_rank in gradients:
            for piece in self._pieces[bucket]:
                own = self._number_of[piece.index]
                self._own.entries[own].parameter.grad = of_rank[piece.start - first:
                                                                piece.end - first]
                self._own.add_gradient(own)

    def notice_drops(self) -> None:
        """Forgets gradients that the program has dropped. Raises if they are some of those of which
        other ranks have parts."""
        gone = [index for index, left in self._left.items()
                if left.dropped or not left.stands_in(self._parameters[index])]
        sent = [index for index in gone if index not in self._waiting]
        if sent and len(gone) < len(self._left):
            raise NotSupportedError(
                f"the gradient of {self.entries[sent[0]].name} was dropped or set to zero, and not "
                "those of all parameters; ranks have parts of it already: call "
                "optimizer.zero_grad() on all ranks instead, or multiply it")
        super().notice_drops()

    def _drop(self, index: int) -> None:
        self._waiting.pop(index)

    # Gradients as tensors of the program: means over ranks. All ranks use them alike.

    def settle(self, index: int) -> None:
        """Waits for what backward passes have handed over. Raises within one, where ranks exchange
        the gradients of others."""
        if in_backward():
            raise NotSupportedError(
                f"p.grad of {self.entries[index].name} was used in a backward pass, while ranks "
                "exchange gradients, as by a hook or by DistributedDataParallel: use it after the "
                "pass, or parameter.register_hook for the gradient of this rank, and leave that "
                "wrapper out")
        self._rounds.finish()

    def _agree(self, call: int, index: int) -> None:
        """Begins what all ranks do with the gradient of a parameter, once all gradients are here.
        Raises on all of them if they have had gradients of other parameters."""
        self.settle(index)
        self._rounds.complete()
        came = [place for place, count in enumerate(self._received) if count > 0]
        homes = sorted(place for place, left in self._left.items() if left.home is not None)
        own = checksum([came, homes, self.changes()])
        for rank, theirs in enumerate(self._ranks.announce(call, index, own).details()):
            if theirs != own:
                raise InvalidArgumentError(
                    f"p.grad of {self.entries[index].name} was read, and rank {rank} has had or "
                    f"changed gradients of other parameters than rank {self._ranks.rank}: clip "
                    "with max_norm= or optimizer.clip_grad_norm_, for which one without a gradient "
                    "has zeros, and make changes on all ranks; zero_grad() forgets this step")

    def gradient(self, index: int) -> torch.Tensor:
        """Returns the mean over ranks of a parameter's gradient, in fp32 and in its shape."""
        self._agree(READS_GRADIENT, index)
        cuts = self._cuts(index)
        start, end = cuts[self._ranks.rank]
        mine = torch.zeros(max(end - start for start, end in cuts))
        if start < end:
            mine[:end - start] = self._own.gradient(self._number_of[index])
        whole = self._whole(index, self._ranks.all_of(mine), cuts, in_memory)
        return whole.div_(self._ranks.size)

    def gradient_norm(self, index: int) -> float:
        """Returns the L2 norm of that mean, as the update computes it."""
        if self._sums is None:
            self._agree(MEASURES, index)
            self._sums = self._leaf_sums()
        sums = self._sums[self._leaves[index]:self._leaves[index + 1]]
        return native.norm_of(sums, [self._elements[index]]) / self._ranks.size

    def _scale(self, index: int, factor: float) -> None:
        self._sums = None
        if index in self._waiting:
            self._waiting[index] = self._waiting[index] * factor
        if (own := self._number_of.get(index)) is not None and self._own.received(own):
            self._own._scale(own, factor)

    def add_gradient(self, index: int) -> None:
        """Hands a gradient over. One whose values are in `grad` has what was here before in it: the
        mean over ranks, to which a backward pass has added that of this rank."""
        left = self._left.get(index)
        if left is not None and left.home is not None and left.stands_in(self._parameters[index]):
            self._note_change(index, "values")
            self._waiting.pop(index, None)
            if (own := self._number_of.get(index)) is not None and self._own.received(own):
                self._own._replace(own, torch.zeros_like(self._own.parameters()[own]))
            left.came, left.home, left.is_own = left.home, None, True
            self._parameters[index].grad = left
        super().add_gradient(index)

    def take_home(self) -> None:
        """Takes the values of gradients that the program has in `grad`: their mean over ranks."""
        for index, left in list(self._left.items()):
            if left.home is not None:
                self.add_gradient(index)

    def apply_factors(self) -> None:
        """Multiplies each gradient by its own factor."""
        for index, left in self._left.items():
            if left.factor != 1:
                self._note_change(index, left.factor)
        super().apply_factors()

    def _note_change(self, index: int, change: Any) -> None:
        self._changes.setdefault(index, []).append((change, in_backward()))

    def changes(self) -> list[tuple[int, list[Any]]]:
        """What the program has done to gradients, by parameter: the same on all ranks."""
        return sorted(self._changes.items())

    def discard_gradients(self) -> None:
        """Forgets the gradients of the step that is under way."""
        if self._any_received:
            self._rounds.finish()
            self._own.discard_gradients()
            self._forget()

    def _forget(self) -> None:
        self._rounds.forget()
        self._waiting.clear()
        self._sums = None
        self._changes = {}
        super()._forget()

    # Steps.

    def norm(self, divisor: float) -> float:
        """Returns the norm of the mean of all ranks' gradients, which are complete."""
        self._check_complete()
        return native.norm_of(self._leaf_sums(), self._elements) / (divisor * self._ranks.size)

    def _leaf_sums(self) -> torch.Tensor:
        """Returns the sums of squares of the leaves of all parameters, which ranks exchange."""
        sums = iter(self._own.leaf_sums())
        mine: list[float] = []
        ends = [0]
        for bucket, pieces in self._pieces.items():
            count = sum(-(-(piece.end - piece.start) // native.leaf_parameters)
                        for piece in pieces)
            mine += [next(sums) for _ in range(count)]
            ends.append(ends[-1] + bucket.part // native.leaf_parameters)
            mine += [0.0] * (ends[-1] - len(mine))
        every = self._ranks.all_of(torch.tensor(mine, dtype=torch.float64))
        return torch.cat([
            every[:, start:end].reshape(-1)[:bucket.leaves]
            for bucket, start, end in zip(self._buckets, ends, ends[1:], strict=False)])

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
        self._forget()
        if not skipped:
            self.publish()
            self._note_update(all_of_them=True)
        return norm, skipped

    def publish(self) -> None:
        """Makes the parameters of all ranks what their masters are."""
        works = []
        for bucket, pieces in self._pieces.items():
            for piece in pieces:
                bucket.memory[piece.start:piece.end].copy_(self._values(piece))
            works.append(self._ranks.spread(bucket.memory))
        for work in works:
            self._ranks.finish(work)

    def _values(self, piece: _Piece) -> torch.Tensor:
        return self._own.entries[self._number_of[piece.index]].parameter.data

    # State.

    def wait_all(self) -> None:
        """Returns at once: ranks defer no update."""

    def _bring(self, index: int) -> int | None:
        """Gives what this rank trains of a parameter the values that the program may have written;
        returns its number."""
        if (own := self._number_of.get(index)) is not None:
            bucket = self._bucket_of[index]
            start, end = bucket.cut(index, self._ranks.rank)
            self._own.entries[own].parameter.data.copy_(bucket.memory[start:end])
        return own

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
        mine = torch.zeros(3, longest)
        wanted = (master, m, v)
        if start < end:
            read = self._own.read(self._number_of[index], *wanted, torch.empty)
            for row, values in zip(mine, read, strict=True):
                if values is not None:
                    row[:end - start] = values
        every = [self._ranks.to_first(row) if want else None
                 for row, want in zip(mine, wanted, strict=True)]
        return [None if values is None else self._whole(index, values, cuts, allocate)
                for values in every]

    def _cuts(self, index: int) -> list[tuple[int, int]]:
        """Where the parts of ranks in a parameter begin and end."""
        return [self._bucket_of[index].cut(index, rank) for rank in range(self._ranks.size)]

    def _whole(self, index: int, every: torch.Tensor, cuts: list[tuple[int, int]],
               allocate: Callable[[int], torch.Tensor]) -> torch.Tensor:
        """Puts the parts of ranks together."""
        first, _ = self._bucket_of[index].span(index)
        whole = allocate(self._elements[index])
        for (start, end), values in zip(cuts, every, strict=True):
            whole[start - first:end - first] = values[:end - start]
        return whole.view(self.entries[index].parameter.shape)

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
