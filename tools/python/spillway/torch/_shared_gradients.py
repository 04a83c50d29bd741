"""Gradients that ranks exchange, and that are tensors of the program: their means over ranks."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from spillway._load import native
from spillway.errors import InvalidArgumentError, NotSupportedError
from spillway.torch._gradient_handle import GradientHandle
from spillway.torch._handed_over import in_backward
from spillway.torch._held import Held
from spillway.torch._ranks import MEASURES, READS_GRADIENT, Ranks, checksum
from spillway.torch._rounds import Bucket, Rounds
from spillway.torch._shard import Shard, in_memory


class Piece(NamedTuple):
    """A part of a parameter that this rank trains."""

    index: int | None  # of the parameter; None: padding
    start: int         # in the memory of its bucket
    end: int


class SharedGradients(Held):
    """Sends each rank's gradients to those that train them. All ranks use them alike."""

    _keeps_last = False  # ranks have parts of them
    _ranks: Ranks
    _rounds: Rounds
    _buckets: list[Bucket]
    _bucket_of: list[Bucket]               # by parameter
    _pieces: dict[Bucket, list[Piece]]     # of this rank
    _own: Shard                            # which trains them
    _number_of: dict[int | None, int]      # there, of a parameter

    def _begin_exchanges(self) -> None:
        """Makes what gradients need, once there are buckets and a trainer."""
        self._waiting: dict[int, torch.Tensor] = {}  # sums of passes, of stage 1
        self._sums: torch.Tensor | None = None  # of the leaves of all ranks, where they are known
        self._changes: dict[int, list[Any]] = {}  # which the program has made to gradients
        self._elements = [entry.parameter.numel() for entry in self.trained_entries()]
        self._rounds.add(self._buckets, self._send_waiting)

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
        """Hands over what no backward pass did, and sums that wait for the step. Raises for a
        gradient of the last step that is in `grad` still."""
        for index, left in self._left.items():
            if left.is_last and self._parameters[index].grad is left:
                raise NotSupportedError(
                    f"the gradient of {left.owner} in the last step is its grad still, and with "
                    "torch a part of this step's; ranks do not keep it: call optimizer.zero_grad() "
                    "before each backward pass, or after each step")
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
        came = [index for index in self._left if self._received[index] > 0]
        gone = [index for index in came if self._left[index].dropped
                or not self._left[index].stands_in(self._parameters[index])]
        sent = [index for index in gone if index not in self._waiting]
        if sent and len(gone) < len(came):
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
        mine = in_memory(max(end - start for start, end in cuts)).zero_()
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
        else:
            self._forget_all_left()

    def _with_last(self, left: GradientHandle, gradient: torch.Tensor) -> torch.Tensor:
        return gradient  # the program may drop both before the step, which raises otherwise

    def _forget(self) -> None:
        self._rounds.forget()
        self._waiting.clear()
        self._sums = None
        self._changes = {}
        super()._forget()

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
        every = self._ranks.all_of(torch.tensor(mine, dtype=torch.float64, device="cpu"))
        return torch.cat([
            every[:, start:end].reshape(-1)[:bucket.leaves]
            for bucket, start, end in zip(self._buckets, ends, ends[1:], strict=False)])

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
